"""The workers of a lane: they come and go with their pods, and tell the driver's event queue of it.

All that there may ever be are asked for at the start (`worker_hosts`). One that is lost is replaced by another for the
same place, which waits for that pod, or for its successor.
"""

import bisect
import itertools
import queue
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Final

import structlog

from longshore.api.reward import RewardFunction
from longshore.policy.reward_pods import RewardPressure
from longshore.policy.reward_queue import MAX_RESPONSES_PER_CALL, RewardQueue, ScoreTask
from longshore_runtime.errors import UserError, first_line
from longshore_runtime.judge.options import MAX_ASKS, POOL_WAIT_S
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import (
    RewardError,
    RewardFault,
    RewardSetupError,
    ScoreItem,
    ScoreOutcome,
)
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.rollout.call_watch import CallWatch
from longshore_runtime.rollout.events import Event, ResponseScored, WorkerLost, WorkerReady
from longshore_runtime.rollout.failed_starts import FailedStarts
from longshore_runtime.rollout.worker_hosts import RewardWorker, WorkerDied, WorkerHost

log = structlog.get_logger()

_OVERTIME: Final = 4.0
_GRACE_S: Final = 300.0
_MAX_FAILED_STARTS: Final = 3
"""Number of failed starts in a row that one place may have: the GPU of a pod may not work until it is replaced."""


@dataclass(frozen=True)
class RewardLane:
    """Workers of one kind: those that compute, those that wait for endpoints, or those that hold a colocated judge."""

    functions: tuple[RewardFunction, ...]
    host: WorkerHost
    """Host with the places of the workers; the first places are used first."""
    is_sized: bool = False
    """Whether the operator adds and removes pods for it."""
    start_limit_s: float = 1_800.0
    """Longest time that a worker, once it has a place, may need to make one function ready."""
    start_wait_s: float = 5.0
    """Seconds before another worker takes the place of one that did not start; twice as long before the next."""


@dataclass(frozen=True)
class _Placed:
    place: int
    worker: RewardWorker

    @property
    def node(self) -> str | None:
        """Node of the worker, if it could report that."""
        node_future = self.worker.node
        return node_future.result() if node_future.done() and node_future.exception() is None else None


@dataclass(frozen=True)
class _Call:
    """Something that a worker has to do within a limit."""

    worker: int
    what: str = "scores for far longer than it may"


class RewardWorkers:
    """The workers of a lane, and what waits for them. Used by the driver's thread alone."""

    def __init__(
        self, number: int, lane: RewardLane, factory: ScorerFactory, events: "queue.SimpleQueue[Event]"
    ) -> None:
        """Request all workers; `number` names the lane in their events."""
        assert lane.host.num_places, "somebody has to score"
        self._number = number
        self._lane = lane
        self._factory = replace(factory, functions=lane.functions)
        self._events = events
        self._names = itertools.count()
        self._workers: dict[int, _Placed] = {}
        self._ready: set[int] = set()
        self._idle: list[tuple[int, int]] = []
        """Idle workers as (place, worker), in order."""
        self._found: dict[str, Surroundings] = {}
        """Surroundings that the newest worker found, by pod."""
        self._failed_starts = FailedStarts(lane.start_wait_s)
        self._is_stopped = False
        self._watch = CallWatch(self._overdue)
        budgets = {f.name: f.max_concurrency for f in lane.functions if f.max_concurrency is not None}
        per_call = {f.name: MAX_RESPONSES_PER_CALL for f in lane.functions if f.is_colocated}
        self.queue = RewardQueue(0, budgets, {f.name: f.retries for f in lane.functions}, per_call)
        for place in range(lane.host.num_places):
            self._ask_for(place)

    @property
    def num_ready(self) -> int:
        """Number of workers that can take work."""
        return len(self._ready)

    @property
    def is_complete(self) -> bool:
        """Whether every place has a worker that can take work."""
        return len(self._ready) == self._lane.host.num_places

    def joined(self, worker: int, found: Surroundings) -> None:
        """Note that a worker can take work, and log what it found if that is new for its pod."""
        if worker in self._workers:
            pod = self._lane.host.name(self._workers[worker].place)
            if self._found.get(pod) != found and found.facts():
                log.info("reward worker", lane=self._number, pod=pod, **found.facts())
            self._found[pod] = found
            self._ready.add(worker)
            self._failed_starts.succeeded(self._workers[worker].place)
            self.freed(worker)

    def failed(self, worker: int, error: str) -> None:
        """Request another worker for one that does not start; raises UserError when that does not help."""
        placed = self._workers.get(worker)
        if placed is None:
            return
        num_failures = self._failed_starts.failed(placed.place, placed.node)
        if num_failures >= _MAX_FAILED_STARTS:
            names = ", ".join(function.name for function in self._lane.functions)
            raise UserError(
                f"reward.functions[{names}]: the worker did not start, {num_failures} times in a row: {error}"
            )
        log.warning("reward worker does not start", lane=self._number, place=placed.place, reason=error)
        self._replace(worker)

    def freed(self, worker: int) -> None:
        """Free a worker that has answered, unless it was lost since."""
        if worker in self._ready:
            bisect.insort(self._idle, (self._workers[worker].place, worker))

    def lost(self, worker: int, reason: str) -> None:
        """Replace a worker that is gone; what it did fails by itself. A second report does no harm.

        One that was never ready did not start: see `failed`.
        """
        if worker not in self._ready:
            self.failed(worker, f"{reason} (the log of its pod may say more)")
            return
        log.warning("reward worker lost", lane=self._number, place=self._workers[worker].place, reason=reason)
        self._replace(worker)

    def start(self, item_of: Callable[[ScoreTask], ScoreItem]) -> None:
        """Give work to idle workers: to those of the lowest places, so that the pods that go first are idle first."""
        self.queue.resize(len(self._idle) + self.queue.num_calls)
        for tasks in self.queue.start():
            _, worker = self._idle.pop(0)
            items = list(map(item_of, tasks))
            self._watch.began(_Call(worker), self._limit_s(tasks[0].function, items))
            answer = self._workers[worker].worker.score(tasks[0].function, items)
            answer.add_done_callback(self._answer_callback(tasks, worker))

    def pressure(self, now_s: float) -> RewardPressure:
        """Return how the workers keep up."""
        num_workers = len(self._ready)
        return RewardPressure(
            self.queue.depth, self.queue.oldest_wait_s(now_s), num_workers, num_workers - len(self._idle)
        )

    def stop(self) -> None:
        """End the workers, without an event."""
        self._is_stopped = True
        self._watch.stop()
        for placed in self._workers.values():
            placed.worker.kill()
        self._lane.host.close()

    def _replace(self, worker: int) -> None:
        placed = self._workers.pop(worker)
        self._ready.discard(worker)
        self._idle = [entry for entry in self._idle if entry[1] != worker]
        placed.worker.kill()
        self._ask_for(placed.place)

    def _ask_for(self, place: int) -> None:
        name, wait_s = next(self._names), self._failed_starts.wait_s(place)
        worker = self._lane.host.ask_for(place, self._factory, wait_s)
        self._workers[name] = _Placed(place, worker)
        worker.node.add_done_callback(lambda _: self._watch_start(name, wait_s, worker.ready))
        worker.death.add_done_callback(lambda reason: self._notify(WorkerLost(self._number, name, reason.result())))

    def _watch_start(self, worker: int, wait_s: float, ready: "Future[Surroundings]") -> None:
        """Note that the worker has a place, or died before it could say so: from now on its start takes time."""
        limit_s = self._lane.start_limit_s * len(self._lane.functions)
        call = _Call(worker, f"starts for more than {limit_s:g} s")
        self._watch.began(call, wait_s + limit_s)
        ready.add_done_callback(lambda future: self._report_ready(call, future))

    def _limit_s(self, function: str, items: Sequence[ScoreItem]) -> float:
        """Return a limit far beyond what these responses may take: scorers keep their own limits unless they hang."""
        (one,) = (each for each in self._lane.functions if each.name == function)
        own_s = sum(sum(item.limits_s) if item.limits_s else one.limit_s for item in items)
        judge_wait_s = MAX_ASKS * POOL_WAIT_S if one.pool is not None else 0.0
        return _OVERTIME * own_s + judge_wait_s + _GRACE_S

    def _overdue(self, call: Hashable) -> None:
        assert isinstance(call, _Call)
        self._notify(WorkerLost(self._number, call.worker, f"it hangs: it {call.what}"))

    def _report_ready(self, call: _Call, future: "Future[Surroundings]") -> None:
        self._watch.ended(call)
        worker, error = call.worker, future.exception()
        if error is None:
            self._notify(WorkerReady(self._number, worker, found=future.result()))
        elif not isinstance(error, WorkerDied):  # WorkerLost reports those.
            is_fatal = isinstance(error, RewardSetupError)
            self._notify(WorkerReady(self._number, worker, first_line(error), is_fatal))

    def _answer_callback(
        self, tasks: Sequence[ScoreTask], worker: int
    ) -> "Callable[[Future[list[ScoreOutcome]]], None]":
        """Report each response; a call that fails as a whole fails each of its responses."""

        def report(future: "Future[list[ScoreOutcome]]") -> None:
            self._watch.ended(_Call(worker))
            error = future.exception()
            outcomes = future.result() if error is None else [_failure(tasks[0].function, error)] * len(tasks)
            for number, (task, outcome) in enumerate(zip(tasks, outcomes, strict=True), start=1):
                self._notify(ResponseScored(task, worker, outcome, is_last_of_call=number == len(tasks)))

        return report

    def _notify(self, event: Event) -> None:
        if not self._is_stopped:
            self._events.put(event)


def _failure(function: str, error: BaseException) -> RewardError | RewardFault:
    """Return why none of the responses of a call has a reward."""
    match error:
        case WorkerDied():
            return WorkerDied(f"reward {function}: the reward worker is lost ({error})")
        case RewardError() | RewardFault():
            return error
    return RewardFault(f"reward {function}: the reward worker failed ({type(error).__name__}: {first_line(error)})")
