"""The workers of a lane: actors that come and go with their pods, and tell the driver's event queue of it.

All that there may ever be are asked for at the start. Ray keeps an actor pending, at no cost, until a node has the
labels that it asks for; so the workers of a reward pod are there as soon as the pod has joined. One that is lost is
replaced by another for the same place, which waits for that pod, or for its successor.
"""

import bisect
import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import ray
import structlog

from longshore.api.reward import RewardFunction
from longshore.policy.reward_pods import RewardPressure
from longshore.policy.reward_queue import RewardQueue, ScoreTask
from longshore_runtime.rewards.scorers import LazyScorer, ScorerFactory
from longshore_runtime.rewards.scoring import RewardError, RewardFault, RewardSetupError, ScoreItem, ScoreResult
from longshore_runtime.rollout.events import ErrorKind, Event, ResponseScored, WorkerLost, WorkerReady

log = structlog.get_logger()


@dataclass(frozen=True)
class Lane:
    """Workers of one kind: those of the reward pods, or those that hold a judge next to an engine."""

    functions: tuple[RewardFunction, ...]
    placements: Sequence[dict[str, Any]]
    """Ray actor options, one per worker; the first ones are used first."""
    is_sized: bool = False
    """The operator adds and removes pods for it."""


class _RewardActor:
    """One worker: every reward function, ready to score one response at a time."""

    def __init__(self, factory: ScorerFactory) -> None:
        self._factory = factory
        self._scorers: dict[str, LazyScorer] = {}

    def ready(self) -> None:
        """Answers once every function can score; raises RewardSetupError."""
        self._scorers = dict(self._factory.create())
        for scorer in self._scorers.values():
            scorer.prepare()

    def attend(self) -> None:
        """Never answers: the call fails when the worker is lost, also while it has nothing to do."""
        threading.Event().wait()

    def score(self, function: str, item: ScoreItem) -> ScoreResult:
        return self._scorers[function].score(item)


_Actor: Any = ray.remote(num_cpus=0, max_restarts=0, max_concurrency=2)(_RewardActor)


@dataclass(frozen=True)
class _Worker:
    place: int
    actor: Any


class RewardWorkers:
    """The workers of a lane, and what waits for them. Used by the driver's thread alone."""

    def __init__(self, number: int, lane: Lane, factory: ScorerFactory, events: "queue.SimpleQueue[Event]") -> None:
        """Ask for all workers; `number` names the lane in their events."""
        assert lane.placements, "somebody has to score"
        self._number = number
        self._lane = lane
        self._factory = replace(factory, functions=lane.functions)
        self._events = events
        self._names = itertools.count()
        self._workers: dict[int, _Worker] = {}
        self._ready: set[int] = set()
        self._idle: list[tuple[int, int]] = []
        """(place, worker), in order."""
        self._is_stopped = False
        budgets = {f.name: f.max_concurrency for f in lane.functions if f.max_concurrency is not None}
        self.queue = RewardQueue(0, budgets, {f.name: f.retries for f in lane.functions})
        for place in range(len(lane.placements)):
            self._ask_for(place)

    def joined(self, worker: int) -> None:
        """A worker can take work."""
        if worker in self._workers:
            self._ready.add(worker)
            self.freed(worker)

    def freed(self, worker: int) -> None:
        """A worker has answered, and can take work unless it was lost since."""
        if worker in self._ready:
            bisect.insort(self._idle, (self._workers[worker].place, worker))

    def lost(self, worker: int) -> None:
        """A worker is gone, and another is asked for; what it did fails by itself. To be told twice does no harm."""
        gone = self._workers.pop(worker, None)
        if gone is None:
            return
        log.warning("reward worker lost", lane=self._number, place=gone.place)
        self._ready.discard(worker)
        self._idle = [entry for entry in self._idle if entry[1] != worker]
        ray.kill(gone.actor)
        self._ask_for(gone.place)

    def start(self, now_s: float, item_of: Callable[[ScoreTask], ScoreItem]) -> None:
        """Give work to idle workers: to those of the lowest places, so that the pods that go first are idle first."""
        self.queue.resize(len(self._idle) + self.queue.num_running)
        for task in self.queue.start(now_s):
            _, worker = self._idle.pop(0)
            reference = self._workers[worker].actor.score.remote(task.function, item_of(task))
            reference.future().add_done_callback(self._teller(task, worker))

    def pressure(self, now_s: float) -> RewardPressure:
        """How the workers keep up."""
        num_workers = len(self._ready)
        return RewardPressure(
            self.queue.depth, self.queue.oldest_wait_s(now_s), num_workers, num_workers - len(self._idle)
        )

    def stop(self) -> None:
        """End the workers; no event tells of it."""
        self._is_stopped = True
        for worker in self._workers.values():
            ray.kill(worker.actor)

    def _ask_for(self, place: int) -> None:
        name = next(self._names)
        actor = _Actor.options(**self._lane.placements[place]).remote(self._factory)
        self._workers[name] = _Worker(place, actor)
        actor.ready.remote().future().add_done_callback(lambda future: self._tell_ready(name, future))
        actor.attend.remote().future().add_done_callback(lambda _: self._tell(WorkerLost(self._number, name)))

    def _tell_ready(self, worker: int, future: "Future[None]") -> None:
        error = future.exception()
        if error is None:
            self._tell(WorkerReady(self._number, worker))
        elif not isinstance(error, ray.exceptions.RayActorError):  # WorkerLost tells of those.
            self._tell(WorkerReady(self._number, worker, str(_cause(error))))

    def _teller(self, task: ScoreTask, worker: int) -> "Callable[[Future[ScoreResult]], None]":
        def tell(future: "Future[ScoreResult]") -> None:
            error = future.exception()
            if error is None:
                self._tell(ResponseScored(task, worker, future.result()))
            else:
                kind, sentence = _failure(task, error)
                self._tell(ResponseScored(task, worker, error=sentence, kind=kind))

        return tell

    def _tell(self, event: Event) -> None:
        if not self._is_stopped:
            self._events.put(event)


def _cause(error: BaseException) -> BaseException:
    """What was raised in the worker, or what became of it."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error


def _failure(task: ScoreTask, error: BaseException) -> tuple[ErrorKind, str]:
    cause = _cause(error)
    match cause:
        case RewardSetupError():
            return ErrorKind.SETUP, str(cause)
        case RewardError():
            return ErrorKind.ERROR, str(cause)
        case RewardFault():
            return ErrorKind.FAULT, str(cause)
    kind = ErrorKind.LOST if isinstance(error, ray.exceptions.RayActorError) else ErrorKind.FAULT
    reason = next(iter(str(cause).splitlines()), "")
    return kind, f"reward {task.function}: the reward worker failed ({type(cause).__name__}: {reason})"
