"""Parts that the training loop works with: the session builds them, and the loop drives them."""

import queue
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field

from longshore.policy.round_policy import RoundPolicy
from longshore_runtime.checkpoint import CheckpointStore
from longshore_runtime.checkpoint_origin import Origin
from longshore_runtime.clock import Clock
from longshore_runtime.data.dataset import PromptSets
from longshore_runtime.elastic.auto_factors import AutoFactors
from longshore_runtime.elastic.job_watch import Assignments
from longshore_runtime.model_export import ModelExport
from longshore_runtime.rollout.engine_pool import EnginePool
from longshore_runtime.rollout.events import Event
from longshore_runtime.rollout.reward_pool import RewardPool
from longshore_runtime.stop import Stop
from longshore_runtime.storage import JobStorage
from longshore_runtime.telemetry.recorder import Recorder
from longshore_runtime.telemetry.step_records import NoRecords, StepSink
from longshore_runtime.trainer.group import TrainerGroup


@dataclass(frozen=True)
class Parts:
    """The parts of one session."""

    policy: RoundPolicy
    prompts: PromptSets
    engines: EnginePool
    trainers: TrainerGroup
    rewards: RewardPool
    checkpoints: CheckpointStore
    storage: JobStorage
    recorder: Recorder
    assignments: Assignments
    elastic: Executor
    """Thread for work that takes time while a round runs."""
    events: "queue.SimpleQueue[Event]"
    clock: Clock
    records: StepSink = field(default_factory=NoRecords)
    auto: AutoFactors | None = None
    """Factors of strategy Auto; None: the job has another strategy."""
    stop: Stop = field(default_factory=Stop)
    """Whether the pod was asked to stop; a round learns it by an event."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """Model, tokenizer and data sets to which the checkpoints of the job belong, by kind."""
    export: ModelExport = field(default_factory=ModelExport)
    """Writer of the final model."""
