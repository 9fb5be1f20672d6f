"""RLJob.status: `runtime` is the coordinator's (`runtime_status`), everything else the operator's."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from longshore.api.base import ApiModel, Freeform
from longshore.api.limits import MAX_COUNT, MAX_MESSAGE_CHARACTERS
from longshore.api.round_status import RoundKind
from longshore.api.runtime_status import JobSize, RuntimeStatus
from longshore.api.sharing import SharingStatus

MAX_CRASH_NODES = 3
"""A job that crashes wherever it runs must not run out of nodes that it prefers."""
_NODE_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"


class Phase(StrEnum):
    """State of a job in one word, for people."""

    QUEUED = "Queued"
    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


FINISHED_PHASES = frozenset({Phase.SUCCEEDED, Phase.FAILED})
WITHOUT_PODS = frozenset({Phase.SUSPENDED, Phase.QUEUED})


class ConditionType(StrEnum):
    """Conditions of a job."""

    ADMITTED = "Admitted"
    SCHEDULED = "Scheduled"
    READY = "Ready"
    SUSPENDED = "Suspended"
    RESIZING = "Resizing"
    SHARING = "Sharing"
    REPURPOSED = "Repurposed"
    REPURPOSE_UNAVAILABLE = "RepurposeUnavailable"
    REGROUP_UNAVAILABLE = "RegroupUnavailable"
    TRAINING_ALARM = "TrainingAlarm"
    COMPLETE = "Complete"
    FAILED = "Failed"
    STATUS_UNREADABLE = "StatusUnreadable"


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ApiModel):
    """A condition with a reason for programs and a message for people."""

    type: str = Field(max_length=316)
    """Type of the condition."""
    status: ConditionStatus
    """True, False or Unknown."""
    reason: str = Field(min_length=1, max_length=1024)
    """One CamelCase word."""
    message: str = Field(default="", max_length=32_768)
    """One sentence."""
    last_transition_time: str = Field(json_schema_extra={"format": "date-time"})
    """When the status last changed."""
    observed_generation: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Generation of the spec that the condition describes."""


class Baseline(ApiModel):
    """What GPU pods do unless an overlay says otherwise: all of them sample."""

    tp_size: int = Field(default=1, ge=1, le=MAX_COUNT)
    """Tensor-parallel size of the engines."""
    tp_sizes: dict[RoundKind, Annotated[int, Field(ge=1, le=MAX_COUNT)]] = Field(default_factory=dict)
    """Sizes of kinds of round that have their own."""

    def tp_size_of(self, kind: RoundKind) -> int:
        """Tensor-parallel size of the engines in a round of this kind."""
        return self.tp_sizes.get(kind, self.tp_size)


class Overlay(ApiModel):
    """What differs from the baseline for the rest of one round; it ends with the round."""

    round: int = Field(ge=1, le=MAX_COUNT)
    """Number of the round."""
    attempt: int = Field(ge=1, le=MAX_COUNT)
    """Attempt that runs the round."""
    trainer_pods: list[int] = Field(min_length=1, max_length=4_096)
    """Worker pods that train instead of sampling."""


class Assignment(ApiModel):
    """What the operator asks of the GPU pods, written at once."""

    epoch: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of the assignment; grows with each one."""
    baseline: Baseline = Field(default_factory=Baseline)
    """Valid until the next epoch."""
    overlay: Overlay | None = None
    """Valid for its round and attempt only."""
    size: JobSize | None = None
    """From the next step on; unset: all worker pods."""
    reason: str = Field(default="", max_length=MAX_MESSAGE_CHARACTERS)
    """Why the assignment was made."""


class PlannerStatus(ApiModel):
    """What the operator remembers to choose tensor-parallel sizes, where `engine.parallelism` is Adaptive."""

    round: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Newest round that it has considered."""
    state: Freeform = Field(default_factory=dict)
    """History of the planner."""


class PodCounts(ApiModel):
    """Pods of a component."""

    desired: int = 0
    """Pods that should run."""
    ready: int = 0
    """Pods that are ready."""


class RewardPodCounts(PodCounts):
    """Reward pods, and what the operator remembers to size them between `reward.pods` and `reward.maxPods`."""

    changed_time: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """When `desired` last changed."""
    calm_since: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """Since when fewer pods would be enough."""
    peak: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Largest `desired` since `peakSince`. After a while, Kueue gets the quota of further pods back."""
    peak_since: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """Since when `peak` counts; unset: Kueue has admitted no reward pods."""
    peak_step: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Steps that were done by then."""
    addresses: list[str] = Field(default_factory=list)
    """IP addresses of the attempt's reward pods, by index; empty where there is none. The coordinator uses them."""


class AdmissionStatus(ApiModel):
    """Admission of a job by the operator or Kueue; recorded here because the operator may restart."""

    admitted: bool = False
    """The job may have pods."""
    gpus: dict[str, Annotated[int, Field(ge=0, le=MAX_COUNT)]] = Field(default_factory=dict, max_length=64)
    """GPUs by resource that the job holds, from its admission until its pods are gone."""
    position: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Place in the operator's queue, from 1; 0: the job does not wait there."""
    workers: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    """Worker pods that an elastic job may have."""
    shrinking_since: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """Since when the job is asked to give GPUs back."""
    queue: str = Field(default="", max_length=253)
    """LocalQueue of Kueue through which the job was admitted; empty: admitted by the operator."""


class AttemptSettings(ApiModel):
    """Settings that an attempt keeps from its start to its end, even if a newer operator has other defaults."""

    generation: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Newest generation of the spec that asks for the settings of the running pods."""
    fingerprint: str = Field(default="", max_length=64)
    """Fingerprint of the settings of that generation, as the operator reads them now."""
    image: str = Field(default="", max_length=512)
    """Runtime image of all pods of the attempt."""


class GpuCounts(ApiModel):
    """GPUs that the job holds, by what they do."""

    rollout: int = 0
    """In pods whose role is rollout."""
    trainer: int = 0
    """In pods whose role is trainer."""
    judge: int = 0
    """In pods that serve judges."""


class RLJobStatus(ApiModel):
    """Present state of a job."""

    phase: Phase | None = None
    """Queued, Pending, Starting, Running, Restarting, Suspended, Succeeded or Failed."""
    observed_generation: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Generation of the spec that this status describes."""
    attempt: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Coordinator starts so far; everything runs for the current attempt."""
    failures: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Failures that count towards backoffLimit; after a newer checkpoint, the next one counts as the first."""
    interruptions: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Times in a row that something outside ended the coordinator and no newer checkpoint was written in between."""
    counted_at_step: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Newest checkpoint when a failure or interruption was last counted; both counts begin again after a newer one."""
    crash_nodes: list[Annotated[str, Field(max_length=253, pattern=_NODE_NAME)]] = Field(
        default_factory=list, max_length=MAX_CRASH_NODES
    )
    """Nodes of the last pods that crashed, the newest last; new pods prefer other nodes."""
    out_of_memory_step: int | None = Field(default=None, ge=0, le=MAX_COUNT)
    """Step at which a pod was last killed for using more memory than its limit; a second time ends the job."""
    start_time: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """When the job became active, for the first time or after a suspension."""
    restart_time: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """Earliest start of the next attempt, while the job backs off."""
    completion_time: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """When the job ended."""
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=32,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """Admitted, Scheduled, Ready, Suspended, Resizing, Sharing, Repurposed, RepurposeUnavailable, RegroupUnavailable,
    TrainingAlarm, Complete, Failed, StatusUnreadable."""
    coordinator: PodCounts = Field(default_factory=PodCounts)
    """The coordinator pod."""
    workers: PodCounts = Field(default_factory=PodCounts)
    """GPU worker pods."""
    trainers: PodCounts = Field(default_factory=PodCounts)
    """GPU pods that only train."""
    rewards: RewardPodCounts = Field(default_factory=RewardPodCounts)
    """Reward pods."""
    judges: PodCounts = Field(default_factory=PodCounts)
    """Pods that serve judges (placement Pool)."""
    gpus: GpuCounts = Field(default_factory=GpuCounts)
    """GPUs by role."""
    admission: AdmissionStatus | None = None
    """Admission of the job, if jobs have to be admitted."""
    settings: AttemptSettings | None = None
    """Settings that the attempt was started with."""
    assignment: Assignment = Field(default_factory=Assignment)
    """What the GPU pods are asked to do."""
    sharing: SharingStatus | None = None
    """Turns of the job on GPUs that it shares, while it is a member of a sharing group."""
    planner: PlannerStatus | None = None
    """Memory of the parallelism planner, if the job uses one."""
    runtime: RuntimeStatus | None = None
    """What the coordinator reports; only the coordinator writes it."""

    def condition(self, kind: ConditionType) -> Condition | None:
        """Return the condition of this type, if there is one."""
        return next((condition for condition in self.conditions if condition.type == kind.value), None)
