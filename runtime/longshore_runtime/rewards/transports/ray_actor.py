"""Score alongside engines: Ray actors that hold the judges of a job on the GPUs of its worker pods.

Ray keeps an actor pending, at no cost, until a node has the labels that it asks for.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import ray

from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import ResponseScorer, ScoreItem, ScoreOutcome, WorkerDied
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.rewards.transports.transport import fail

T = TypeVar("T")


class _RewardActor:
    """One worker: every reward function, ready to score; one call of `score` at a time."""

    def __init__(self, environment: Mapping[str, str], factory: ScorerFactory) -> None:
        os.environ.update(environment)  # Before anything else: see `ActorPlacement`.
        self._factory = factory
        self._scorers: dict[str, ResponseScorer] = {}

    def node(self) -> str:
        """Return the node that it is on; answers as soon as there is a process."""
        node: str = ray.get_runtime_context().get_node_id()
        return node

    def ready(self, wait_s: float) -> Surroundings:
        """Wait until every function can score; raises RewardSetupError or RewardFault."""
        time.sleep(wait_s)
        return self._factory.create_all(self._scorers)

    def attend(self) -> None:
        """Never return: the call fails when the worker is lost, also while it has nothing to do."""
        threading.Event().wait()

    def score(self, function: str, items: Sequence[ScoreItem]) -> list[ScoreOutcome]:
        return self._scorers[function].score_many(items)


_CALLS_AT_ONCE: Final = 3
"""Number of calls that run at once.

`node`, `ready` and `attend` begin in any order: with fewer threads, those that take long keep the others waiting.
"""
_RemoteReward: Any = ray.remote(num_cpus=0, max_restarts=0, max_concurrency=_CALLS_AT_ONCE)(_RewardActor)


class RayTransport:
    """Implements `Transport`."""

    def __init__(self, place_actor: Callable[..., Any], factory: ScorerFactory, wait_s: float) -> None:
        """Request an actor; `place_actor` starts it where its worker belongs, as `ActorPlacement.remote` does."""
        self._actor = place_actor(_RemoteReward, factory)
        self._is_killed = False
        self.node: Future[str] = _of(self._actor.node.remote().future())
        # Whoever hears that it has not started asks where it was.
        self.ready: Future[Surroundings] = _of(self._actor.ready.remote(wait_s).future(), after=self.node)
        self.death: Future[str] = Future()
        attends: Future[None] = self._actor.attend.remote().future()
        attends.add_done_callback(lambda future: self.death.set_result(_death(future.exception())))

    def score(self, function: str, items: Sequence[ScoreItem]) -> "Future[list[ScoreOutcome]]":
        if self._is_killed:  # Ray ends the process in the background, and it may answer until then.
            answer: Future[list[ScoreOutcome]] = Future()
            fail(answer, WorkerDied("it was given up"))
            return answer
        return _of(self._actor.score.remote(function, items).future())

    def kill(self) -> None:
        self._is_killed = True
        ray.kill(self._actor)


def _of(reply: "Future[T]", after: "Future[Any] | None" = None) -> "Future[T]":
    """Return an answer with the exception of the worker in place of the one by which Ray reports it.

    It is not done before `after` is.
    """
    answer: Future[T] = Future()

    def resolve(future: "Future[T]") -> None:
        error = future.exception()
        if error is None:
            answer.set_result(future.result())
        else:
            answer.set_exception(_translated(error))

    if after is None:
        reply.add_done_callback(resolve)
    else:
        after.add_done_callback(lambda _: reply.add_done_callback(resolve))
    return answer


def _translated(error: BaseException) -> BaseException:
    if isinstance(error, ray.exceptions.RayActorError):
        return WorkerDied(_death(error))
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error


def _death(error: BaseException | None) -> str:
    """Return what Ray knows of the end of a worker: the beginning of the last line of many."""
    last_line = str(error).strip().rpartition("\n")[2]
    return last_line.partition(". ")[0].removeprefix("The actor is dead because ")
