"""Events that reach the driver, all through one queue: whatever happens, one place waits for it."""

import queue
from collections.abc import Sequence
from dataclasses import dataclass

from longshore.api.status import Assignment
from longshore.policy.draws import Draw
from longshore.policy.scale_down import MilestoneLoad
from longshore.rounds.messages import EngineJoined, EngineLost
from longshore_runtime.backends.engine_protocol import Completion, EngineStats
from longshore_runtime.environments.events import EpisodeNews
from longshore_runtime.rewards.events import RewardEvent


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
class TeacherAnswered:
    """The teacher has answered about a group, or asking it has failed."""

    sender: object
    """`TaughtGroups` that has asked: a round that is sampled again has another one."""
    draw: Draw


@dataclass(frozen=True)
class StopRequested:
    """The pod was asked to stop."""


ElasticEvent = AssignmentChanged | LoadMeasured | PodsRepurposed | GradientsDone
Event = (
    EngineOutput
    | EngineLost
    | EngineJoined
    | WeightsLost
    | RewardEvent
    | EpisodeNews
    | ElasticEvent
    | ReplicaLost
    | TeacherAnswered
    | StopRequested
)
Events = queue.SimpleQueue[Event]
