"""Hosts of reward workers: what a lane asks of reward pods, of GPU pods and of this process."""

import contextlib
import itertools
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Protocol

from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import RewardFault, ScoreItem, ScoreOutcome
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.rewards.worker import ScoringThread


class WorkerDied(RewardFault):
    """Raised when a worker was lost; the message is one sentence."""


class RewardWorker(Protocol):
    """One worker, from the moment that it is asked for. Its futures are done in other threads."""

    node: "Future[str]"
    """Future with the pod of the worker, as soon as it is on one; WorkerDied where it was lost before."""
    ready: "Future[Surroundings]"
    """Future that is done once the worker can score.

    It raises RewardSetupError, RewardFault (WorkerDied among them) or what else the worker met.
    """
    death: "Future[str]"
    """Future that is done when the worker is lost, with the reason."""

    def score(self, function: str, items: Sequence[ScoreItem]) -> "Future[list[ScoreOutcome]]":
        """Score responses, one call at a time; raises what `ready` raises."""

    def kill(self) -> None:
        """End the worker, by force if necessary."""


class WorkerHost(Protocol):
    """Provides a number of places for workers, of which the first ones are used first."""

    num_places: int

    def ask_for(self, place: int, factory: ScorerFactory, wait_s: float) -> RewardWorker:
        """Begin to start a worker, which waits before it makes its functions ready; does not wait itself."""

    def name(self, place: int) -> str:
        """Return what the pod of a place is called in logs."""

    def close(self) -> None:
        """Close the host: no worker is asked for any more, and all have been killed."""


class LocalWorkers:
    """Implements `WorkerHost` in this process: a thread per worker."""

    def __init__(self, num_places: int) -> None:
        self.num_places = num_places

    def ask_for(self, place: int, factory: ScorerFactory, wait_s: float) -> RewardWorker:
        return _LocalWorker(factory, wait_s)

    def name(self, place: int) -> str:
        return "this pod"

    def close(self) -> None:
        """Do nothing: threads end by themselves."""


class _LocalWorker:
    """Implements `RewardWorker`; it is lost only when it is given up."""

    def __init__(self, factory: ScorerFactory, wait_s: float) -> None:
        self.node: Future[str] = Future()
        self.node.set_result("here")
        self.death: Future[str] = Future()
        self._thread = ScoringThread(factory)
        self._answer: Future[list[ScoreOutcome]] | None = None
        """Future with the answer to the last call."""
        self.ready = self._thread.prepare(wait_s)

    def score(self, function: str, items: Sequence[ScoreItem]) -> "Future[list[ScoreOutcome]]":
        answer = self._answer = Future()
        self._thread.score(function, items).add_done_callback(lambda scored: _pass_on(scored, answer))
        return answer

    def kill(self) -> None:
        """Give its call up: one that hangs keeps the thread, and would never be answered."""
        if self._answer is not None:
            with contextlib.suppress(InvalidStateError):  # It has been answered.
                self._answer.set_exception(WorkerDied("it was given up"))
        self._thread.close()


def _pass_on(scored: "Future[list[ScoreOutcome]]", answer: "Future[list[ScoreOutcome]]") -> None:
    """Answer a call, unless it was given up."""
    with contextlib.suppress(InvalidStateError, CancelledError):
        if (error := scored.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(scored.result())


class JoinedHosts:
    """Implements `WorkerHost`: the places of several, one host after the other."""

    def __init__(self, hosts: Sequence[WorkerHost]) -> None:
        self._hosts = hosts
        self._starts = list(itertools.accumulate((host.num_places for host in hosts), initial=0))
        self.num_places = self._starts[-1]

    def ask_for(self, place: int, factory: ScorerFactory, wait_s: float) -> RewardWorker:
        host, its_place = self._at(place)
        return host.ask_for(its_place, factory, wait_s)

    def name(self, place: int) -> str:
        host, its_place = self._at(place)
        return host.name(its_place)

    def close(self) -> None:
        for host in self._hosts:
            host.close()

    def _at(self, place: int) -> tuple[WorkerHost, int]:
        number = next(number for number, end in enumerate(self._starts[1:]) if place < end)
        return self._hosts[number], place - self._starts[number]
