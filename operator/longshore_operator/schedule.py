"""Decide when each job is reconciled: after events and timers, fairly, with a time limit for each pass."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from longshore_kube.errors import KubeError
from longshore_operator.apply import ApplyFailed
from longshore_operator.fairness import Bucket, FairQueue
from longshore_operator.identity import Key
from longshore_operator.metrics import OperatorMetrics

PASS_LIMIT_S: Final = 60.0
"""Time limit of a pass, after which it is cancelled and retried; batches keep passes far below it."""
PASS_BURST: Final = 50
PASSES_PER_S: Final = 10.0
"""Long-run rate of passes per job; above it, several changes share a pass."""
BUSY_S_PER_PASS: Final = 0.01
"""A pass that keeps the processor busy for n times as long counts as n."""
SETTLE_S: Final = 5.0
"""How long a pass waits for further changes that are probably coming."""
_FIRST_RETRY_S: Final = 1.0
_MAX_RETRY_S: Final = 60.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PassResult:
    """Result of a pass."""

    exists: bool
    next_look_s: float | None = None
    """Seconds until the next pass if nothing happens."""
    busy_s: float = 0.0
    """Processor time of the pass."""


@dataclass(slots=True)
class _JobEntry:
    """A job that waits for a pass, is in a pass, or sleeps until a timer or an event."""

    bucket: Bucket
    retry_s: float
    due_s: float | None = None
    """Time since which a pass is due; None: none is."""
    is_backlog: bool = False
    """Whether the pass is due only because the job was listed, without a known change."""
    is_running: bool = False
    settles_at_s: float | None = None
    """Time at which a pass becomes due for changes that may wait for others; None: there are none."""
    timer: asyncio.TimerHandle | None = None
    """Ends the sleep, or the wait for the bucket."""


class Schedule:
    """Run `run_pass(key)` for every job that is woken; two passes of a job never run at once.

    `on_deleted(key)`: the job does not exist any more. Jobs of one namespace have at most half of the slots at once,
    where there are other namespaces. After a start every job is listed, and most of them have not changed: this backlog
    has at most half of the slots, and a queue of its own, so that a job that changes does not wait for it.
    """

    def __init__(
        self,
        run_pass: Callable[[Key], Awaitable[PassResult]],
        on_deleted: Callable[[Key], None],
        metrics: OperatorMetrics,
        num_slots: int,
        has_one_namespace: bool,
    ) -> None:
        self._run_pass = run_pass
        self._on_deleted = on_deleted
        self._metrics = metrics
        self._num_slots = num_slots
        self._num_backlog_slots = max(1, num_slots // 2)
        share = 1 if has_one_namespace else 2
        self._changed = FairQueue(max(1, num_slots // share))
        self._backlog = FairQueue(max(1, self._num_backlog_slots // share))
        self._entries: dict[Key, _JobEntry] = {}
        self._passes: set[asyncio.Task[None]] = set()
        self._is_open = False
        self._progress_s: float | None = None
        """Time since which passes are due or running and none has ended; None: none is due or running."""

    def open(self) -> None:
        """Start to run passes, beginning with those that already wait."""
        self._is_open = True
        self._dispatch()

    def wake(self, key: Key) -> None:
        """Request a pass after a change or a timer; a pass that is already due only leaves the backlog."""
        entry = self._entry(key)
        if entry.due_s is None:
            self._become_due(key, entry, is_backlog=False)
        elif entry.is_backlog:
            entry.is_backlog = False
            if self._backlog.remove(key):
                self._changed.add(key)
                self._dispatch()

    def catch_up(self, key: Key) -> None:
        """Request a pass for a job that was listed; jobs that are known to have changed go first."""
        entry = self._entry(key)
        if entry.due_s is None:
            self._become_due(key, entry, is_backlog=True)

    def settle(self, key: Key) -> None:
        """Request a pass after a change that others probably follow; it begins after `SETTLE_S`, for all of them."""
        entry = self._entry(key)
        if entry.due_s is None and entry.settles_at_s is None:
            entry.settles_at_s = time.monotonic() + SETTLE_S
            if not entry.is_running:
                self._sleep(key, entry, SETTLE_S)

    def num_pending(self) -> int:
        """Return the number of jobs that wait for a pass or are in a pass."""
        return self._num_waiting() + len(self._passes)

    def stalled_s(self, now_s: float) -> float:
        """Return for how long passes have been due or running while none ended; `now_s` is monotonic time."""
        return now_s - self._progress_s if self._progress_s is not None else 0.0

    async def close(self) -> None:
        """Stop all passes and start no more."""
        self._is_open = False
        for entry in self._entries.values():
            if entry.timer is not None:
                entry.timer.cancel()
        passes = tuple(self._passes)
        for task in passes:
            task.cancel()
        await asyncio.gather(*passes, return_exceptions=True)

    def _entry(self, key: Key) -> _JobEntry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _JobEntry(Bucket(PASS_BURST, PASSES_PER_S, time.monotonic()), _FIRST_RETRY_S)
        return entry

    def _become_due(self, key: Key, entry: _JobEntry, *, is_backlog: bool) -> None:
        now_s = time.monotonic()
        entry.due_s, entry.is_backlog = now_s, is_backlog
        if not entry.is_running:
            self._put_in_line(key, entry, now_s)

    def _put_in_line(self, key: Key, entry: _JobEntry, now_s: float) -> None:
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        wait_s = entry.bucket.wait_s(now_s)
        if wait_s > 0:
            entry.timer = asyncio.get_running_loop().call_later(wait_s, self._bucket_filled, key)
            return
        (self._backlog if entry.is_backlog else self._changed).add(key)
        self._show_depth()
        self._dispatch()

    def _bucket_filled(self, key: Key) -> None:
        entry = self._entries[key]
        entry.timer = None
        self._put_in_line(key, entry, time.monotonic())

    def _dispatch(self) -> None:
        """Start passes while there are free slots."""
        if self._progress_s is None and self._num_waiting():
            self._progress_s = time.monotonic()
        while self._is_open and len(self._passes) < self._num_slots:
            found = self._next()
            if found is None:
                return
            queue, key = found
            entry = self._entries[key]
            assert entry.due_s is not None, "it waits because it is due"
            self._metrics.reconcile_lag_seconds.observe(time.monotonic() - entry.due_s)
            entry.due_s, entry.settles_at_s, entry.is_running = None, None, True
            task = asyncio.create_task(self._make_pass(key, entry, queue), name=f"reconcile {key[0]}/{key[1]}")
            self._passes.add(task)
            task.add_done_callback(self._passes.discard)

    def _next(self) -> tuple[FairQueue, Key] | None:
        """Return the next job and its queue: the queue with fewer running passes, or on a tie that of changes."""
        queues = [self._changed]
        if self._backlog.num_running < self._num_backlog_slots:
            queues.append(self._backlog)
        for queue in sorted(queues, key=lambda queue: queue.num_running):
            key = queue.pop()
            if key is not None:
                return queue, key
        return None

    def _num_waiting(self) -> int:
        return len(self._changed) + len(self._backlog)

    async def _make_pass(self, key: Key, entry: _JobEntry, queue: FairQueue) -> None:
        began_s = time.monotonic()
        try:
            result = await self._result(key, entry)
        finally:
            ended_s = time.monotonic()
            queue.done(key, ended_s - began_s)
            entry.is_running = False
        entry.bucket.take(ended_s, max(1.0, result.busy_s / BUSY_S_PER_PASS))
        if entry.due_s is not None:
            self._put_in_line(key, entry, ended_s)
        elif not result.exists:
            del self._entries[key]
            self._on_deleted(key)
        else:
            settled_s = entry.settles_at_s - ended_s if entry.settles_at_s is not None else None
            look_s = min((one for one in (result.next_look_s, settled_s) if one is not None), default=None)
            if look_s is not None:
                self._sleep(key, entry, max(0.0, look_s))
        task = asyncio.current_task()
        assert task is not None, "a pass is a task"
        self._passes.discard(task)
        self._progress_s = ended_s if self.num_pending() else None
        self._show_depth()
        self._dispatch()

    def _sleep(self, key: Key, entry: _JobEntry, delay_s: float) -> None:
        """Look at the job after a while, or when it already was to be looked at earlier."""
        loop = asyncio.get_running_loop()
        if entry.timer is not None:
            if entry.timer.when() <= loop.time() + delay_s:
                return
            entry.timer.cancel()
        entry.timer = loop.call_later(delay_s, self._look, key)

    def _look(self, key: Key) -> None:
        self._entries[key].timer = None
        self.wake(key)

    async def _result(self, key: Key, entry: _JobEntry) -> PassResult:
        try:
            async with asyncio.timeout(PASS_LIMIT_S):
                with self._metrics.reconcile_seconds.time():
                    result = await self._run_pass(key)
        except Exception as error:
            # An error with one job must not stop the others.
            self._metrics.reconcile_errors.inc()
            known = isinstance(error, ApplyFailed | KubeError | TimeoutError)
            log.warning("reconciling failed", job=key, error=repr(error), exc_info=not known)
            retry_s, entry.retry_s = entry.retry_s, min(2 * entry.retry_s, _MAX_RETRY_S)
            return PassResult(exists=True, next_look_s=retry_s)
        entry.retry_s = _FIRST_RETRY_S
        return result

    def _show_depth(self) -> None:
        self._metrics.queue_depth.set(self.num_pending())
