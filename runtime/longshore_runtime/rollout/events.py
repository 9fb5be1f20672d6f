"""Events that reach the driver, all through one queue: whatever happens, one place waits for it."""

import queue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from longshore.api.status import Assignment
from longshore.policy.draws import Draw
from longshore.policy.reward_queue import ScoreTask
from longshore.policy.scale_down import MilestoneLoad
from longshore.rounds.messages import EngineJoined, EngineLost
from longshore_runtime.backends.engine_protocol import Completion, EngineStats
from longshore_runtime.rewards.scoring import ScoreOutcome
from longshore_runtime.rewards.surroundings import Surroundings


@dataclass(frozen=True)
class EngineOutput:
    """Responses finished or were aborted on an engine."""

    engine: int
    completions: Sequence[Completion]
    stats: EngineStats
    """State of the engine at that time."""


@dataclass(frozen=True)
class WeightsLost:
    """No engine has the current weights, and they are gone: nobody will finish what the round waits for."""

    reason: str


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

    lane: int
    worker: int
    error: str | None = None
    is_fatal: bool = False
    """Whether no worker will ever start."""
    found: Surroundings = field(default_factory=Surroundings)
    """Surroundings of a worker that takes work."""


@dataclass(frozen=True)
class WorkerLost:
    """A reward worker is gone, or of no more use; its pod may have been taken away."""

    lane: int
    worker: int
    reason: str


@dataclass(frozen=True)
class RewardPulse:
    """Time has passed: it may be time to report how rewards keep up."""


@dataclass(frozen=True)
class ReplicaLost:
    """A trainer replica is gone."""

    reason: str
    generation: int = 0
    """Generation of the trainers' processes that the replica belonged to; losses of earlier ones are ignored."""


@dataclass(frozen=True)
class AssignmentChanged:
    """The operator asks something else of the GPU pods."""

    assignment: Assignment


@dataclass(frozen=True)
class LoadMeasured:
    """Load of the engines, present and expected, at a milestone of a round; None: they did not answer in time."""

    sender: object
    """Repurposing that asked: a round that is sampled again has another one, and the same number."""
    load: MilestoneLoad | None


@dataclass(frozen=True)
class PodsRepurposed:
    """Engines of these pods sleep and their trainer replicas are awake, or an error says why they are not."""

    sender: object
    """Repurposing that carried this out."""
    pods: tuple[int, ...]
    replicas: tuple[int, ...]
    error: str | None = None


@dataclass(frozen=True)
class GradientsDone:
    """A trainer replica has computed the gradients of one part."""

    replica: int
    update: object
    """The update that the part belongs to."""


@dataclass(frozen=True)
class StopRequested:
    """The pod was asked to stop."""


@dataclass(frozen=True)
class RetryDue:
    """A task that met a fault may be tried again."""

    task: ScoreTask


RewardEvent = ResponseScored | WorkerReady | WorkerLost | RetryDue | RewardPulse
ElasticEvent = AssignmentChanged | LoadMeasured | PodsRepurposed | GradientsDone
Event = (
    EngineOutput
    | EngineLost
    | EngineJoined
    | WeightsLost
    | GroupScored
    | RewardEvent
    | ElasticEvent
    | ReplicaLost
    | StopRequested
)
Events = queue.SimpleQueue[Event]
