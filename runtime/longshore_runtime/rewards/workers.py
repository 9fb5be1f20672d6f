"""What a reward pool knows of its workers: which functions share them, what each has to do, and which did not start."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from longshore.api.reward import RewardFunction
from longshore.policy.reward_queue import MAX_RESPONSES_PER_CALL, RewardQueue
from longshore_runtime.judge.options import MAX_ASKS, POOL_WAIT_S
from longshore_runtime.rewards.kinds.registry import kind_of
from longshore_runtime.rewards.scoring import ScoreItem
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.rewards.transports.transport import Transport, WorkerPlace

START_LIMIT_S: Final = 1_800.0
"""Longest time that a worker, once it has a place, may need to make one function ready."""
START_WAIT_S: Final = 5.0
"""Seconds before another worker takes the place of one that did not start; twice as long before the next."""
_GROWTH: Final = 2.0
_OVERTIME: Final = 4.0
_GRACE_S: Final = 300.0


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


def call_limit_s(function: RewardFunction, items: Sequence[ScoreItem]) -> float:
    """Return a limit far beyond what these responses may take: scorers keep their own limits unless they hang."""
    own_s = sum(sum(item.limits_s) if item.limits_s else function.limit_s for item in items)
    judge_wait_s = MAX_ASKS * POOL_WAIT_S if function.pool is not None else 0.0
    return _OVERTIME * own_s + judge_wait_s + _GRACE_S
