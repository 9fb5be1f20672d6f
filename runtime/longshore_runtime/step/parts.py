"""What the training loop works with: options of the job, and the parts that the session builds."""

import math
import queue
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final

from longshore.api.algorithm import Algorithm
from longshore.api.model import Evaluation
from longshore.api.rollout import Handover, OnFinish, OnPolicy, RepurposeTrigger
from longshore.api.spec import Placement, RLJobSpec
from longshore.api.training import CheckpointSettings, TrainerDtype
from longshore.checks.pod_memory import KEPT_TOKENS, max_step_tokens
from longshore.policy.data_types import trainer_dtype
from longshore.policy.log_prob_mismatch import mismatch_limit
from longshore.policy.round_policy import RoundPolicy
from longshore.policy.training_alarms import AlarmLimits
from longshore_runtime.checkpoints.model_export import ModelExport
from longshore_runtime.checkpoints.origin import Origin
from longshore_runtime.checkpoints.store import CheckpointStore
from longshore_runtime.clock import Clock
from longshore_runtime.data.dataset import PromptSets
from longshore_runtime.elastic.auto_factors import AutoFactors
from longshore_runtime.elastic.job_watch import Assignments
from longshore_runtime.elastic.repurposing import RepurposingOptions
from longshore_runtime.environments.pool import EnvironmentPool
from longshore_runtime.judge.teacher import RemoteTeacher
from longshore_runtime.rewards.pool import RewardPool
from longshore_runtime.rollout.engine_pool import EnginePool
from longshore_runtime.rollout.events import Event
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
    environments: EnvironmentPool | None = None
    """Environments in which responses act; None: every response is one turn."""
    teacher: RemoteTeacher | None = None
    """Teacher behind an endpoint; None: trainers hold the teacher, or there is none."""
    auto: AutoFactors | None = None
    """Factors of strategy Auto; None: the job has another strategy."""
    stop: Stop = field(default_factory=Stop)
    """Whether the pod was asked to stop; a round learns it by an event."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """Model, tokenizer and data sets to which the checkpoints of the job belong, by kind."""
    export: ModelExport = field(default_factory=ModelExport)
    """Writer of the final model."""


_BF16_TOLERANCE: Final = 0.02
"""Largest relative difference of verified gradients where layers compute in bfloat16 (which reaches 0.01)."""
_FP32_TOLERANCE: Final = 1e-4
"""Largest relative difference of verified gradients elsewhere (fp32 reaches 0.00001)."""
_NO_LIMITS: Final = AlarmLimits(max_mismatch=math.inf, max_response_tokens=0)


@dataclass(frozen=True)
class LoopOptions:
    """The slice of the spec that the loop needs."""

    algorithm: Algorithm
    evaluation: Evaluation
    on_finish: OnFinish
    checkpoint: CheckpointSettings
    attempt: int = 1
    """Attempt of the coordinator; this loop ignores overlays of other attempts."""
    num_workers: int = 1
    """Number of worker pods of the session."""
    is_colocated: bool = True
    """Whether engines and trainers share GPUs: one side sleeps while the other works."""
    handover: Handover = Handover.AFTER_ROUND
    """Time at which the trainers get groups; with strategy Auto, the one that it begins with."""
    trains_during_rollout: bool = True
    """Whether all trainers have their accelerators (or processors) while engines run."""
    repurposing: RepurposingOptions | None = None
    """Settings for pods that go from rollout to training within a round; None: no pod does."""
    verify_every: int | None = None
    verify_tolerance: float = 0.0
    max_mismatch: float | None = None
    """Largest mean mismatch of log-probabilities with which a step is trained on; None: any."""
    alarm_limits: AlarmLimits = _NO_LIMITS
    reward_weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of each reward function, by name."""

    @classmethod
    def of(cls, spec: RLJobSpec, attempt: int = 1) -> "LoopOptions":
        """Return the slice of this spec."""
        is_colocated = spec.placement is Placement.COLOCATED
        repurposes = is_colocated and spec.rollout.repurposes
        limit = mismatch_limit(
            spec.rollout,
            spec.trainer.dtype,
            engines_have_accelerators=spec.workers.has_accelerator,
            trainers_have_accelerators=spec.training_pods.has_accelerator,
        )
        dtype = trainer_dtype(spec.trainer.dtype, has_accelerators=spec.training_pods.has_accelerator)
        return cls(
            algorithm=spec.algorithm,
            evaluation=spec.evaluation,
            on_finish=spec.rollout.on_finish,
            checkpoint=spec.checkpoint,
            attempt=attempt,
            num_workers=spec.workers.replicas,
            is_colocated=is_colocated,
            handover=spec.rollout.effective_handover,
            trains_during_rollout=not is_colocated or (not spec.workers.has_accelerator and not repurposes),
            repurposing=_repurposing(spec, attempt) if repurposes else None,
            verify_every=spec.trainer.verify_every,
            max_mismatch=limit if spec.rollout.on_policy is OnPolicy.STRICT and limit < math.inf else None,
            alarm_limits=AlarmLimits(
                limit, spec.algorithm.max_response_tokens, learns_from_rewards=spec.algorithm.teacher is None
            ),
            reward_weights={function.name: function.weight for function in spec.reward.functions},
            verify_tolerance=_BF16_TOLERANCE if dtype is TrainerDtype.BFLOAT16 else _FP32_TOLERANCE,
        )

    def is_checkpoint_due(self, step: int, unsaved_s: float, unsaved_tokens: int) -> bool:
        """Return whether the end of a step writes a checkpoint.

        Args:
            unsaved_s: time since the last one.
            unsaved_tokens: tokens that are kept in memory until then (`Recovery`).
        """
        return (
            step % self.checkpoint.every_steps == 0
            or unsaved_s >= self.checkpoint.every_seconds
            or unsaved_tokens >= max(KEPT_TOKENS, max_step_tokens(self.algorithm))
        )


def _repurposing(spec: RLJobSpec, attempt: int) -> RepurposingOptions:
    settings = spec.rollout.repurposing
    fixed = settings.fraction if settings.trigger is RepurposeTrigger.FIXED else None
    return RepurposingOptions(attempt, spec.algorithm.max_response_tokens, fixed)
