"""RLJob.status: `runtime` is the coordinator's (`runtime_status`), everything else the operator's."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from longshore.api.base import ApiModel, Freeform
from longshore.api.limits import MAX_COUNT, MAX_MESSAGE_CHARACTERS
from longshore.api.round_status import RoundKind
from longshore.api.runtime_status import JobSize, RuntimeStatus

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
    REPURPOSED = "Repurposed"
    REPURPOSE_UNAVAILABLE = "RepurposeUnavailable"
    REGROUP_UNAVAILABLE = "RegroupUnavailable"
    TRAINING_ALARM = "TrainingAlarm"
    COMPLETE = "Complete"
    FAILED = "Failed"
    STATUS_UNREADABLE = "StatusUnreadable"


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ApiModel):
    """Condition of the job, with a reason for programs and a message for people."""

    type: str = Field(max_length=316)
    """Type of the condition, such as Ready or Failed."""
    status: ConditionStatus
    """Whether the condition holds."""
    reason: str = Field(min_length=1, max_length=1024)
    """Why the condition has its status, as one CamelCase word."""
    message: str = Field(default="", max_length=32_768)
    """Why the condition has its status, in one sentence for people."""
    last_transition_time: str = Field(json_schema_extra={"format": "date-time"})
    """Time at which the status of the condition last changed."""
    observed_generation: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Generation of the spec that the condition describes."""


class Baseline(ApiModel):
    """What GPU pods do unless the overlay of an assignment says otherwise: all of them sample."""

    tp_size: int = Field(default=1, ge=1, le=MAX_COUNT)
    """Tensor-parallel size of the engines."""
    tp_sizes: dict[RoundKind, Annotated[int, Field(ge=1, le=MAX_COUNT)]] = Field(default_factory=dict)
    """Tensor-parallel sizes of the engines in kinds of round that have their own."""

    def tp_size_of(self, kind: RoundKind) -> int:
        """Return the tensor-parallel size of the engines in a round of this kind."""
        return self.tp_sizes.get(kind, self.tp_size)


class Overlay(ApiModel):
    """What differs from the baseline for the rest of one round. It ends with the round."""

    round: int = Field(ge=1, le=MAX_COUNT)
    """Number of the round that the overlay is for."""
    attempt: int = Field(ge=1, le=MAX_COUNT)
    """Number of the attempt that runs the round."""
    trainer_pods: list[int] = Field(min_length=1, max_length=4_096)
    """Indices of the worker pods that train instead of sampling."""


class Assignment(ApiModel):
    """What the operator asks the GPU pods to do."""

    epoch: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of the assignment, which grows with each one."""
    baseline: Baseline = Field(default_factory=Baseline)
    """What GPU pods do until the next assignment."""
    overlay: Overlay | None = None
    """What some pods do instead for the rest of one round."""
    size: JobSize | None = None
    """Number of worker pods from the next step on. Unset: all of them."""
    reason: str = Field(default="", max_length=MAX_MESSAGE_CHARACTERS)
    """Why the assignment was made."""


class PlannerStatus(ApiModel):
    """What the operator remembers to choose tensor-parallel sizes, if `rollout.engine.parallelism` is Adaptive."""

    round: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of the newest round that the planner has considered."""
    state: Freeform = Field(default_factory=dict)
    """State of the planner: what it has learned from earlier rounds."""


class PodCounts(ApiModel):
    """Number of pods of a component."""

    desired: int = 0
    """Number of pods that should run."""
    ready: int = 0
    """Number of pods that are ready."""


class ListeningPodCounts(PodCounts):
    """Number of pods of a component that the coordinator connects to, and where they are."""

    addresses: list[str] = Field(default_factory=list)
    """IP addresses of the pods of the attempt, by index, for the coordinator. An empty address: there is no pod with
    this index."""


class RewardPodCounts(ListeningPodCounts):
    """Number of reward pods, and what the operator needs to change it between `reward.pods` and `reward.maxPods`."""

    changed_time: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """Time at which `desired` last changed."""
    calm_since: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """Time since which fewer pods would be enough."""
    peak: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Largest `desired` since `peakSince`. If it stays smaller for a while, Kueue gets the quota of the other pods
    back."""
    peak_since: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """Time since which `peak` is counted. Unset: Kueue has admitted no reward pods."""
    peak_step: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of steps that were done at `peakSince`."""


class AdmissionStatus(ApiModel):
    """Admission of the job by the operator or by Kueue."""

    admitted: bool = False
    """Whether the job may have pods."""
    gpus: dict[str, Annotated[int, Field(ge=0, le=MAX_COUNT)]] = Field(default_factory=dict, max_length=64)
    """Number of GPUs that the job holds from its admission until its pods are deleted, by resource."""
    position: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Place of the job in the queue of the operator, from 1. 0: it does not wait there."""
    workers: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    """Number of worker pods that an elastic job may have."""
    shrinking_since: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """Time since which the job is asked to give GPUs back."""
    queue: str = Field(default="", max_length=253)
    """LocalQueue of Kueue through which the job was admitted. Empty: the operator admitted it."""


class AttemptSettings(ApiModel):
    """Settings that an attempt keeps from its start to its end, even if a newer operator has other defaults."""

    generation: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Newest generation of the spec that asks for the settings of the running pods."""
    fingerprint: str = Field(default="", max_length=64)
    """Fingerprint of the settings of that generation, as the operator reads them now."""
    image: str = Field(default="", max_length=512)
    """Image of all pods of the attempt."""


class GpuCounts(ApiModel):
    """Number of GPUs that the job holds, by what they do."""

    rollout: int = 0
    """Number of GPUs in pods that sample."""
    trainer: int = 0
    """Number of GPUs in pods that train."""
    judge: int = 0
    """Number of GPUs in pods that serve judges."""


class RLJobStatus(ApiModel):
    """What the job does now and what it has done so far, as the operator and the coordinator report it."""

    phase: Phase | None = None
    """State of the job in one word."""
    observed_generation: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Generation of the spec that this status describes."""
    attempt: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of the current attempt: how often the coordinator has been started. 0: not yet."""
    failures: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of failures that count towards backoffLimit since the newest checkpoint."""
    interruptions: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of times in a row that something outside the job ended the coordinator before a newer checkpoint."""
    counted_at_step: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Step of the newest checkpoint when a failure or interruption was last counted. Both counts begin again after a
    newer checkpoint."""
    crash_nodes: list[Annotated[str, Field(max_length=253, pattern=_NODE_NAME)]] = Field(
        default_factory=list, max_length=MAX_CRASH_NODES
    )
    """Nodes of the last pods that crashed, the newest last. New pods prefer other nodes."""
    out_of_memory_step: int | None = Field(default=None, ge=0, le=MAX_COUNT)
    """Step at which a pod was last killed for exceeding its memory limit. A second time at this step ends the job."""
    start_time: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """Time at which the job became active, for the first time or after a suspension."""
    restart_time: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """Earliest time at which the next attempt starts, while the job backs off."""
    completion_time: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """Time at which the job ended."""
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=32,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """Conditions of the job (`docs/reference/reasons.md`)."""
    coordinator: PodCounts = Field(default_factory=PodCounts)
    """Number of coordinator pods."""
    workers: PodCounts = Field(default_factory=PodCounts)
    """Number of worker pods."""
    trainers: PodCounts = Field(default_factory=PodCounts)
    """Number of trainer pods, with placement Disaggregated."""
    rewards: RewardPodCounts = Field(default_factory=RewardPodCounts)
    """Number of reward pods."""
    judges: PodCounts = Field(default_factory=PodCounts)
    """Number of judge pods, with placement Pool."""
    environments: ListeningPodCounts = Field(default_factory=ListeningPodCounts)
    """Number of environment pods."""
    gpus: GpuCounts = Field(default_factory=GpuCounts)
    """Number of GPUs that the job holds, by what they do."""
    admission: AdmissionStatus | None = None
    """Whether the job may have pods, if jobs have to be admitted."""
    settings: AttemptSettings | None = None
    """Settings that the attempt was started with."""
    assignment: Assignment = Field(default_factory=Assignment)
    """What the operator asks the GPU pods to do."""
    planner: PlannerStatus | None = None
    """What the operator remembers to choose tensor-parallel sizes, if `rollout.engine.parallelism` is Adaptive."""
    runtime: RuntimeStatus | None = None
    """What the coordinator reports: progress, figures of the last step, alarms and rounds."""

    def condition(self, kind: ConditionType) -> Condition | None:
        """Return the condition of this type, if there is one."""
        return next((condition for condition in self.conditions if condition.type == kind.value), None)
