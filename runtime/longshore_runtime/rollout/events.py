"""Events that reach the driver, all through one queue: whatever happens, one place waits for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from longshore.policy.draws import Draw
from longshore_runtime.types import Completion, EngineStats


@dataclass(frozen=True)
class ResponsesEnded:
    """Responses finished or were aborted on an engine."""

    engine: int
    completions: Sequence[Completion]
    stats: EngineStats | None = None
    """State of the engine at that time."""


@dataclass(frozen=True)
class EngineLost:
    """An engine is gone, with everything that ran on it."""

    engine: int
    reason: str


@dataclass(frozen=True)
class EngineJoined:
    """An engine is there (again), with the current weights."""

    engine: int


@dataclass(frozen=True)
class Score:
    """Reward of one response."""

    reward: float
    timed_out: bool


@dataclass(frozen=True)
class GroupScored:
    """A group has its rewards, one per response, or the reason why they could not be computed."""

    draw: Draw
    scores: Sequence[Score] = ()
    error: str | None = None
    is_fatal: bool = False
    """The reward cannot be computed for any sample."""


@dataclass(frozen=True)
class TrainerGone:
    """A trainer replica is gone."""

    reason: str


@dataclass(frozen=True)
class StopRequested:
    """The pod was asked to stop."""


Event = ResponsesEnded | EngineLost | EngineJoined | GroupScored | TrainerGone | StopRequested
