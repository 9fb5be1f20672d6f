"""RLJob.status: `runtime` is the coordinator's, everything else the operator's."""

from enum import StrEnum

from pydantic import Field

from longshore.api.base import ApiModel


class Phase(StrEnum):
    """Where a job stands, in one word for people."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


FINISHED_PHASES = frozenset({Phase.SUCCEEDED, Phase.FAILED})


class RoundKind(StrEnum):
    """Kind of a round."""

    SHORT = "Short"
    LONG = "Long"
    FULL = "Full"


class ConditionType(StrEnum):
    """Conditions of a job."""

    SCHEDULED = "Scheduled"
    READY = "Ready"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ApiModel):
    """A condition with a reason for programs and a message for people."""

    type: str = Field(max_length=316)
    """What it is about."""
    status: ConditionStatus
    """True, False or Unknown."""
    reason: str = Field(min_length=1, max_length=1024)
    """One CamelCase word."""
    message: str = Field(default="", max_length=32_768)
    """One sentence."""
    last_transition_time: str = Field(json_schema_extra={"format": "date-time"})
    """When the status last changed."""
    observed_generation: int = Field(default=0, ge=0)
    """Generation of the spec that it speaks of."""


class RoundStatus(ApiModel):
    """The round that runs now."""

    number: int = Field(ge=0)
    """Rounds so far; the round of step k has number k."""
    kind: RoundKind
    """Short (speculative), Long (no speculation) or Full (policies without short rounds)."""
    fraction_finished: float = Field(default=0.0, ge=0, le=1)
    """Finished over launched requests."""


class ResponseTokens(ApiModel):
    """Lengths of the responses that the last step trained on, in tokens."""

    mean: float = 0.0
    """Mean."""
    p75: float = 0.0
    """Third quartile."""
    max: int = 0
    """Longest."""


class HeldOutReward(ApiModel):
    """Mean reward on held-out prompts."""

    before: float | None = None
    """Before the first step."""
    latest: float | None = None
    """Newest evaluation."""
    long_before: float | None = None
    """Before the first step, on the quartile of prompts with the longest answers."""
    long_latest: float | None = None
    """Newest evaluation, on that quartile."""


class DrawCounts(ApiModel):
    """What became of the draws."""

    trained: int = 0
    """Consumed by an update."""
    zero_variance: int = 0
    """All rewards of the group were equal: trained with advantages of 0, or left out under dynamicSampling."""
    rejected: int = 0
    """Replaced by a fresh draw because their reward could not be computed."""
    deferred: int = 0
    """In the long-prompt queue now."""


class KindCount(ApiModel):
    """Rounds of a kind, and what they took."""

    rounds: int = 0
    """Rounds of this kind."""
    rollout_s: float = Field(default=0.0, alias="rolloutSeconds")
    """Rollout time of all of them."""
    samples: int = 0
    """Responses that they gave to training."""
    preemptions: int = 0
    """Requests that engines preempted in them."""


class WarmStart(ApiModel):
    """The supervised warm start of the built-in model."""

    seconds: float = 0.0
    """What it took, or what it had taken when it was cached."""
    cached: bool = False
    """Whether an earlier job's result was used."""


class RewardLoad(ApiModel):
    """How the workers of the reward pods keep up with the rollout."""

    queue_length: int = Field(default=0, ge=0)
    """Responses that wait for a worker."""
    oldest_wait_s: float = Field(default=0.0, ge=0, alias="oldestWaitSeconds")
    """Longest wait of a response that its group waits for."""
    workers: int = Field(default=0, ge=0)
    """Workers that are there."""
    busy: int = Field(default=0, ge=0)
    """Workers that score a response."""


class RuntimeStatus(ApiModel):
    """What the coordinator reports, at milestones only."""

    attempt: int = Field(default=0, ge=0)
    """Attempt that reports."""
    step: int = Field(default=0, ge=0)
    """Optimizer steps done."""
    steps: int = Field(default=0, ge=0)
    """Optimizer steps asked for."""
    round: RoundStatus | None = None
    """The current round."""
    reward: float | None = None
    """Mean training reward of the last step."""
    held_out: HeldOutReward = Field(default_factory=HeldOutReward)
    """Held-out reward."""
    response_tokens: ResponseTokens = Field(default_factory=ResponseTokens)
    """Response lengths of the last step."""
    tokens_per_s: float = Field(default=0.0, alias="tokensPerSecond")
    """Response tokens trained on per second of the last step."""
    bubble_share: float = Field(default=0.0, ge=0, le=1)
    """Share of engine time in which engines idled during the last rollout."""
    draws: DrawCounts = Field(default_factory=DrawCounts)
    """What became of the draws."""
    short: KindCount = Field(default_factory=KindCount)
    """Short rounds so far."""
    long: KindCount = Field(default_factory=KindCount)
    """Long rounds so far."""
    full: KindCount = Field(default_factory=KindCount)
    """Rounds of policies that know no short ones."""
    warm_start: WarmStart | None = None
    """The warm start, where the job asks for one."""
    rewards: RewardLoad | None = None
    """How rewards keep up, where `reward.maxPods` lets the operator add pods: told every 2 s at most, when it moves."""
    checkpoint_step: int = Field(default=0, ge=0)
    """Step of the newest checkpoint."""
    final_model: str | None = None
    """Where the final model lies in the storage."""
    activity: str = Field(default="", max_length=256)
    """What the coordinator does now: StartingEngines, WarmStart, Evaluate, Rollout, Train, Publish, Done."""


class Baseline(ApiModel):
    """What GPU pods do unless an overlay says otherwise."""

    tp_size: int = Field(default=1, ge=1)
    """Tensor-parallel size of the engines."""


class Assignment(ApiModel):
    """What the operator asks of the GPU pods, written in one piece."""

    epoch: int = Field(default=0, ge=0)
    """Grows with every assignment."""
    baseline: Baseline = Field(default_factory=Baseline)
    """Valid until the next epoch."""
    reason: str = Field(default="", max_length=1024)
    """Why."""


class PodCounts(ApiModel):
    """Pods of a component."""

    desired: int = 0
    """Pods that should run."""
    ready: int = 0
    """Pods that are ready."""


class RewardPodCounts(PodCounts):
    """Reward pods, and what the operator remembers to size them between `reward.pods` and `reward.maxPods`."""

    changed_time: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """When `desired` changed last."""
    calm_since: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """Since when fewer pods would do."""


class GpuCounts(ApiModel):
    """GPUs that the job holds, by what they do."""

    rollout: int = 0
    """In pods whose role is rollout."""
    trainer: int = 0
    """In pods whose role is trainer."""


class RLJobStatus(ApiModel):
    """What is."""

    phase: Phase | None = None
    """Pending, Starting, Running, Restarting, Suspended, Succeeded or Failed."""
    observed_generation: int = Field(default=0, ge=0)
    """Generation of the spec that this status speaks of."""
    attempt: int = Field(default=0, ge=0)
    """Coordinator starts so far; everything runs for the current attempt."""
    failures: int = Field(default=0, ge=0)
    """Attempts that count towards backoffLimit."""
    start_time: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """When the job became active, for the first time or after a suspension."""
    restart_time: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """Earliest start of the next attempt, while the job backs off."""
    completion_time: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """When the job ended."""
    conditions: list[Condition] = Field(
        default_factory=list,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """Scheduled, Ready, Suspended, Complete, Failed."""
    coordinator: PodCounts = Field(default_factory=PodCounts)
    """The coordinator pod."""
    workers: PodCounts = Field(default_factory=PodCounts)
    """GPU worker pods."""
    rewards: RewardPodCounts = Field(default_factory=RewardPodCounts)
    """Reward pods."""
    gpus: GpuCounts = Field(default_factory=GpuCounts)
    """GPUs by role."""
    assignment: Assignment = Field(default_factory=Assignment)
    """What the GPU pods are asked to do."""
    runtime: RuntimeStatus | None = None
    """What the coordinator reports; written by it alone."""
