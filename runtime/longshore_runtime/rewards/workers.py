"""The workers of a reward pool: which functions share them, how they start, what each does, and how they are replaced.

A worker is asked for at every place, at the start. One that is lost is replaced by another at the same place, which
waits for that pod, or for its successor.
"""

import bisect
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import structlog

from longshore.api.reward import RewardFunction
from longshore.policy.reward_queue import MAX_RESPONSES_PER_CALL, RewardQueue
from longshore_runtime.errors import UserError, first_line
from longshore_runtime.judge.options import MAX_ASKS, POOL_WAIT_S
from longshore_runtime.rewards.events import WorkerLost, WorkerReady
from longshore_runtime.rewards.kinds.registry import kind_of
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import RewardSetupError, ScoreItem, WorkerDied
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.rewards.transports.transport import Transport, WorkerPlace

log = structlog.get_logger()

START_LIMIT_S: Final = 1_800.0
"""Longest time that a worker, once it has a place, may need to make one function ready."""
START_WAIT_S: Final = 5.0
"""Seconds before another worker takes the place of one that did not start; twice as long before the next."""
_GROWTH: Final = 2.0
_OVERTIME: Final = 4.0
_GRACE_S: Final = 300.0
_MAX_FAILED_STARTS: Final = 3
"""Number of failed starts in a row that one place may have: the GPU of a pod may not work until it is replaced."""


@dataclass(frozen=True)
class _FailureStreak:
    node: str | None
    count: int


class FailedStarts:
    """Counts workers that do not start by place, as long as it stays on one node: with a new pod all is to be tried."""

    def __init__(self, first_wait_s: float) -> None:
        """Begin without failures; the wait is `first_wait_s` after the first one, and each further one doubles it."""
        self._first_wait_s = first_wait_s
        self._rows: dict[int, _FailureStreak] = {}

    def failed(self, place: int, node: str | None) -> int:
        """Return how many in a row have failed now; `node` is None where the worker could not say where it was."""
        before = self._rows.get(place, _FailureStreak(node, 0))
        if None not in (node, before.node) and node != before.node:
            before = _FailureStreak(node, 0)
        self._rows[place] = _FailureStreak(node or before.node, before.count + 1)
        return before.count + 1

    def succeeded(self, place: int) -> None:
        """Note that a worker of this place is ready."""
        self._rows.pop(place, None)

    def wait_s(self, place: int) -> float:
        """Return how long the next worker of this place waits before it tries."""
        row = self._rows.get(place)
        return 0.0 if row is None else self._first_wait_s * _GROWTH ** (row.count - 1)


@dataclass(eq=False)
class WorkerGroup:
    """Functions that share workers, because they use a worker alike, and the state of these workers in their pool."""

    functions: tuple[RewardFunction, ...]
    places: Sequence[WorkerPlace]
    """Places of the workers; the first ones are used first."""
    is_sized: bool = False
    """Whether the operator adds and removes pods for it."""
    queue: RewardQueue = field(init=False)
    """Responses that wait for a worker of the group."""
    ready: set[int] = field(init=False, default_factory=set)
    """Numbers of the workers that can take work."""
    idle: list[tuple[int, int]] = field(init=False, default_factory=list)
    """Idle workers as (place, number), in order."""
    found: dict[str, Surroundings] = field(init=False, default_factory=dict)
    """Surroundings that the newest worker found, by the name of its place."""
    failed_starts: FailedStarts = field(init=False)

    @property
    def names(self) -> str:
        """Names of the functions, for messages."""
        return ", ".join(function.name for function in self.functions)

    def __post_init__(self) -> None:
        assert self.places, "somebody has to score"
        budgets = {f.name: f.max_concurrency for f in self.functions if f.max_concurrency is not None}
        per_call = {f.name: MAX_RESPONSES_PER_CALL for f in self.functions if f.is_colocated}
        self.queue = RewardQueue(0, budgets, {f.name: f.retries for f in self.functions}, per_call)
        self.failed_starts = FailedStarts(START_WAIT_S)

    @property
    def is_uncertain(self) -> bool:
        """Whether a function may turn out not to work. A colocated judge starts with them."""
        return any(not kind_of(one.kind).is_proven and not one.is_colocated for one in self.functions)

    @property
    def start_limit_s(self) -> float:
        """Longest time that the start of a worker may take."""
        return START_LIMIT_S * len(self.functions)


@dataclass(eq=False)
class Worker:
    """A worker, from the moment that it is asked for."""

    group: WorkerGroup
    place: int
    """Number of its place in the group."""
    transport: Transport
    work: "Future[Any]"
    """Future of what it has to do: its start, or its last call."""
    limit_s: float
    """Longest time that its start may take."""
    deadline_s: float | None = None
    """Time by which the work has to be done; None: it has no place yet, and its start takes no time."""

    @property
    def pod(self) -> str:
        """Name of its pod in logs."""
        return self.group.places[self.place].name

    @property
    def node(self) -> str | None:
        """Node of the worker, if it could report that."""
        node = self.transport.node
        return node.result() if node.done() and node.exception() is None else None

    def is_overdue(self, now_s: float) -> bool:
        """Return whether the work takes longer than it may."""
        if self.deadline_s is None and self.transport.node.done():
            self.deadline_s = now_s + self.limit_s
        return self.deadline_s is not None and now_s > self.deadline_s and not self.work.done()


class Workers:
    """All workers of a pool; used by the driver's thread, but for `notify`, which futures of transports call."""

    def __init__(
        self,
        groups: Sequence[WorkerGroup],
        factory: ScorerFactory,
        notify: Callable[[WorkerReady | WorkerLost], None],
        on_worker: Callable[[Surroundings], None] | None,
    ) -> None:
        """Ask for a worker at every place; `on_worker` is called for each that can take work."""
        self._factory = factory
        self._notify = notify
        self._on_worker = on_worker
        self._numbers = itertools.count()
        self._workers: dict[int, Worker] = {}
        for group in groups:
            for place in range(len(group.places)):
                self._start(group, place)

    def take(self, group: WorkerGroup) -> tuple[int, Worker]:
        """Take the idle worker of the lowest place, so that the pods that go first are idle first, and its number."""
        _, number = group.idle.pop(0)
        return number, self._workers[number]

    def free(self, number: int) -> None:
        """Free a worker that has answered, unless it was lost since."""
        worker = self._workers.get(number)
        if worker is not None and number in worker.group.ready:
            bisect.insort(worker.group.idle, (worker.place, number))

    def started(self, event: WorkerReady) -> None:
        """Note that a worker can take work, or replace one that does not start; raises UserError if that is no use."""
        if event.error is None:
            self._join(event.worker, event.found)
        elif event.is_fatal:
            raise UserError(event.error)
        else:
            self._fail_start(event.worker, event.error)

    def lose(self, number: int, reason: str) -> None:
        """Replace a worker that is gone; what it did fails by itself. A second report does no harm."""
        worker = self._workers.get(number)
        if worker is None:
            return
        if number not in worker.group.ready:
            self._fail_start(number, f"{reason} (the log of its pod may say more)")
            return
        log.warning("reward worker lost", pod=worker.pod, reason=reason)
        self._replace(number)

    def replace_hanging(self, now_s: float) -> None:
        """Replace workers that take longer than they may."""
        for number, worker in list(self._workers.items()):
            if worker.is_overdue(now_s):
                is_ready = number in worker.group.ready
                start = f"starts for more than {worker.group.start_limit_s:g} s"
                what = "scores for far longer than it may" if is_ready else start
                self.lose(number, f"it hangs: it {what}")

    def stop(self) -> None:
        """End all workers."""
        for worker in self._workers.values():
            worker.transport.kill()

    def _start(self, group: WorkerGroup, place: int) -> None:
        number, wait_s = next(self._numbers), group.failed_starts.wait_s(place)
        transport = group.places[place].start(replace(self._factory, functions=group.functions), wait_s)
        self._workers[number] = Worker(group, place, transport, transport.ready, wait_s + group.start_limit_s)
        transport.ready.add_done_callback(partial(self._report_ready, number))
        transport.death.add_done_callback(lambda reason: self._notify(WorkerLost(number, reason.result())))

    def _report_ready(self, number: int, ready: "Future[Surroundings]") -> None:
        error = ready.exception()
        if error is None:
            self._notify(WorkerReady(number, found=ready.result()))
        elif not isinstance(error, WorkerDied):  # WorkerLost reports those.
            self._notify(WorkerReady(number, first_line(error), isinstance(error, RewardSetupError)))

    def _join(self, number: int, found: Surroundings) -> None:
        """Note that a worker can take work, and log what it found if that is new for its pod."""
        if self._on_worker is not None:
            self._on_worker(found)
        worker = self._workers.get(number)
        if worker is None:
            return
        group = worker.group
        if group.found.get(worker.pod) != found and found.facts():
            log.info("reward worker", pod=worker.pod, functions=group.names, **found.facts())
        group.found[worker.pod] = found
        group.ready.add(number)
        group.failed_starts.succeeded(worker.place)
        self.free(number)

    def _fail_start(self, number: int, error: str) -> None:
        """Request another worker for one that does not start; raises UserError when that does not help."""
        worker = self._workers.get(number)
        if worker is None:
            return
        num_failures = worker.group.failed_starts.failed(worker.place, worker.node)
        if num_failures >= _MAX_FAILED_STARTS:
            names = worker.group.names
            raise UserError(
                f"reward.functions[{names}]: the worker did not start, {num_failures} times in a row: {error}"
            )
        log.warning("reward worker does not start", pod=worker.pod, reason=error)
        self._replace(number)

    def _replace(self, number: int) -> None:
        worker = self._workers.pop(number)
        worker.group.ready.discard(number)
        worker.group.idle = [entry for entry in worker.group.idle if entry[1] != number]
        worker.transport.kill()
        self._start(worker.group, worker.place)


def call_limit_s(function: RewardFunction, items: Sequence[ScoreItem]) -> float:
    """Return a limit far beyond what these responses may take: scorers keep their own limits unless they hang."""
    own_s = sum(sum(item.limits_s) if item.limits_s else function.limit_s for item in items)
    judge_wait_s = MAX_ASKS * POOL_WAIT_S if function.pool is not None else 0.0
    return _OVERTIME * own_s + judge_wait_s + _GRACE_S
