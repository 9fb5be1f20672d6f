"""When each job is reconciled: woken by events and by time, in fair turns, and no pass without an end."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from longshore_kube.errors import KubeError
from longshore_operator.execute import ApplyFailed
from longshore_operator.fairness import Bucket, FairQueue, Key
from longshore_operator.metrics import Metrics

PASS_LIMIT_S: Final = 60.0
"""A pass that takes longer is given up and tried again; batches keep passes far below."""
PASS_BURST: Final = 50
PASSES_PER_S: Final = 10.0
"""Of one job, in the long run: what changes more often is looked at less often than it changes."""
BUSY_S_PER_PASS: Final = 0.01
"""A job whose passes keep the processor busy for longer has so many fewer of them."""
_FIRST_RETRY_S: Final = 1.0
_MAX_RETRY_S: Final = 60.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a pass came to."""

    exists: bool
    next_look_s: float | None = None
    """Seconds until the job is to be looked at again though nothing happens."""
    busy_s: float = 0.0
    """Time for which it kept the processor."""


@dataclass(slots=True)
class _Entry:
    """A job: it waits for its turn, is in a pass, or sleeps until its timer or an event."""

    bucket: Bucket
    retry_s: float = _FIRST_RETRY_S
    due_s: float | None = None
    """Since when a pass is due, while one is."""
    is_running: bool = False
    timer: asyncio.TimerHandle | None = None
    """Ends the sleep, or the wait for the bucket."""


class Schedule:
    """Runs `reconcile(key)` for every job that is woken; two passes of a job never run at once.

    `on_gone(key)`: the job does not exist any more. Half of the slots are the most that jobs of one namespace have at
    once, where there are other namespaces.
    """

    def __init__(
        self,
        reconcile: Callable[[Key], Awaitable[PassResult]],
        on_gone: Callable[[Key], None],
        metrics: Metrics,
        num_slots: int,
        has_one_namespace: bool,
    ) -> None:
        self._reconcile = reconcile
        self._on_gone = on_gone
        self._metrics = metrics
        self._num_slots = num_slots
        self._queue = FairQueue(num_slots if has_one_namespace else max(1, num_slots // 2))
        self._entries: dict[Key, _Entry] = {}
        self._passes: set[asyncio.Task[None]] = set()
        self._is_open = False
        self._progress_s: float | None = None
        """Time since which passes are due or running and none has ended; None: nothing is."""

    def open(self) -> None:
        """Passes run from now on; what was woken before has waited."""
        self._is_open = True
        self._dispatch()

    def wake(self, key: Key) -> None:
        """A pass of this job is due; while one is due already, nothing changes."""
        now_s = time.monotonic()
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(Bucket(PASS_BURST, PASSES_PER_S, now_s))
        if entry.due_s is not None:
            return
        entry.due_s = now_s
        if not entry.is_running:
            self._put_in_line(key, entry, now_s)

    def num_pending(self) -> int:
        """Jobs that wait for their turn, or are in a pass."""
        return len(self._queue) + len(self._passes)

    def stalled_s(self, now_s: float) -> float:
        """For how long passes have been due or running without any that ended; `now_s` is monotonic time."""
        return now_s - self._progress_s if self._progress_s is not None else 0.0

    async def close(self) -> None:
        """Stop all passes, and start no other."""
        self._is_open = False
        for entry in self._entries.values():
            if entry.timer is not None:
                entry.timer.cancel()
        passes = tuple(self._passes)
        for task in passes:
            task.cancel()
        await asyncio.gather(*passes, return_exceptions=True)

    def _put_in_line(self, key: Key, entry: _Entry, now_s: float) -> None:
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        wait_s = entry.bucket.wait_s(now_s)
        if wait_s > 0:
            entry.timer = asyncio.get_running_loop().call_later(wait_s, self._bucket_filled, key)
            return
        self._queue.add(key)
        self._show_depth()
        self._dispatch()

    def _bucket_filled(self, key: Key) -> None:
        entry = self._entries[key]
        entry.timer = None
        self._put_in_line(key, entry, time.monotonic())

    def _dispatch(self) -> None:
        """Begin passes while there are slots."""
        if self._progress_s is None and len(self._queue):
            self._progress_s = time.monotonic()
        while self._is_open and len(self._passes) < self._num_slots:
            key = self._queue.pop()
            if key is None:
                return
            entry = self._entries[key]
            assert entry.due_s is not None, "it waits because it is due"
            self._metrics.reconcile_lag_seconds.observe(time.monotonic() - entry.due_s)
            entry.due_s, entry.is_running = None, True
            task = asyncio.create_task(self._pass(key, entry), name=f"reconcile {key[0]}/{key[1]}")
            self._passes.add(task)
            task.add_done_callback(self._passes.discard)

    async def _pass(self, key: Key, entry: _Entry) -> None:
        began_s = time.monotonic()
        try:
            result = await self._result(key, entry)
        finally:
            ended_s = time.monotonic()
            self._queue.done(key, ended_s - began_s)
            entry.is_running = False
        entry.bucket.take(ended_s, max(1.0, result.busy_s / BUSY_S_PER_PASS))
        if entry.due_s is not None:
            self._put_in_line(key, entry, ended_s)
        elif not result.exists:
            del self._entries[key]
            self._on_gone(key)
        elif result.next_look_s is not None:
            entry.timer = asyncio.get_running_loop().call_later(result.next_look_s, self._look, key)
        task = asyncio.current_task()
        assert task is not None, "a pass is a task"
        self._passes.discard(task)
        self._progress_s = ended_s if self.num_pending() else None
        self._show_depth()
        self._dispatch()

    def _look(self, key: Key) -> None:
        self._entries[key].timer = None
        self.wake(key)

    async def _result(self, key: Key, entry: _Entry) -> PassResult:
        try:
            async with asyncio.timeout(PASS_LIMIT_S):
                with self._metrics.reconcile_seconds.time():
                    result = await self._reconcile(key)
        except Exception as error:
            # Whatever is wrong with one job must not stop the others.
            self._metrics.reconcile_errors.inc()
            known = isinstance(error, ApplyFailed | KubeError | TimeoutError)
            log.warning("reconciling failed", job=key, error=repr(error), exc_info=not known)
            retry_s, entry.retry_s = entry.retry_s, min(2 * entry.retry_s, _MAX_RETRY_S)
            return PassResult(exists=True, next_look_s=retry_s)
        entry.retry_s = _FIRST_RETRY_S
        return result

    def _show_depth(self) -> None:
        self._metrics.queue_depth.set(self.num_pending())
