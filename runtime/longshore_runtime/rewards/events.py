"""Events that reach the driver about rewards; `rollout.events` has all others of its queue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from longshore.policy.draws import Draw
from longshore.policy.reward_queue import ScoreTask
from longshore_runtime.rewards.scoring import ScoreOutcome
from longshore_runtime.rewards.surroundings import Surroundings


@dataclass(frozen=True)
class Score:
    """Reward of one response."""

    reward: float
    timed_out: bool
    parts: Mapping[str, float] = field(default_factory=dict)
    """Unweighted reward of each function."""


@dataclass(frozen=True)
class GroupScored:
    """A group has its rewards, one per response, or the reason why they could not be computed."""

    draw: Draw
    scores: Sequence[Score] = ()
    domain: str = ""
    """Domain of the prompt."""
    error: str | None = None
    is_fatal: bool = False
    """Whether the job fails for it; otherwise the group is replaced."""


@dataclass(frozen=True)
class ResponseScored:
    """A reward worker answered."""

    task: ScoreTask
    worker: int
    outcome: ScoreOutcome
    is_last_of_call: bool = True
    """Whether the worker has nothing more to answer."""


@dataclass(frozen=True)
class WorkerReady:
    """A reward worker takes work, or does not start and says why."""

    worker: int
    error: str | None = None
    is_fatal: bool = False
    """Whether no worker will ever start."""
    found: Surroundings = field(default_factory=Surroundings)
    """Surroundings of a worker that takes work."""


@dataclass(frozen=True)
class WorkerLost:
    """A reward worker is gone; its pod may have been taken away."""

    worker: int
    reason: str


@dataclass(frozen=True)
class RetryDue:
    """A task that met a fault may be tried again."""

    task: ScoreTask


@dataclass(frozen=True)
class CheckDue:
    """Time has passed: workers may hang, and the load of the others may have changed."""


RewardEvent = ResponseScored | WorkerReady | WorkerLost | RetryDue | CheckDue
