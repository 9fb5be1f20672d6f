"""Define transports, which carry calls to one worker and report how the worker fares."""

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, Protocol

from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import ScoreItem, ScoreOutcome
from longshore_runtime.rewards.surroundings import Surroundings


class Transport(Protocol):
    """The way to one worker, from the moment that it is asked for. Its futures are done in other threads."""

    node: "Future[str]"
    """Future with the pod of the worker, as soon as it is on one; WorkerDied where it was lost before."""
    ready: "Future[Surroundings]"
    """Future that is done once the worker can score.

    It raises RewardSetupError, RewardFault (WorkerDied among them) or what else the worker met.
    """
    death: "Future[str]"
    """Future that is done when the worker is lost, with the reason."""

    def score(self, function: str, items: Sequence[ScoreItem]) -> "Future[list[ScoreOutcome]]":
        """Score responses once the worker is ready, one call at a time; raises what `ready` raises."""

    def kill(self) -> None:
        """End the worker, by force if necessary."""


@dataclass(frozen=True)
class WorkerPlace:
    """A place that one worker at a time has."""

    name: str
    """Name of the place's pod in logs."""
    start: Callable[[ScorerFactory, float], Transport]
    """Function that begins to start a worker, which waits so many seconds before it makes its functions ready."""


def fail(future: "Future[Any]", error: Exception) -> None:
    """Set the exception of a future unless it is done."""
    with contextlib.suppress(InvalidStateError):
        future.set_exception(error)
