"""RLJob.status.runtime: what the coordinator reports. Only the coordinator writes it, and it writes nothing else."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from longshore.api.base import ApiModel
from longshore.api.limits import MAX_COUNT, MAX_MESSAGE_CHARACTERS, MAX_REPORTED
from longshore.api.reward import SandboxLayer
from longshore.api.rollout import EngineDtype, Handover
from longshore.api.round_status import RepurposingBenefit, RolloutTimes, RoundKind, RoundStatus, RoundSummary
from longshore.api.training import TrainerDtype

_Seconds = Annotated[float, Field(ge=0, le=MAX_COUNT)]


class JobSize(ApiModel):
    """Number of worker pods of an elastic job."""

    epoch: int = Field(ge=0, le=MAX_COUNT)
    """Number of the assignment that asks for this size."""
    workers: int = Field(ge=1, le=MAX_COUNT)
    """Number of worker pods that the job uses, from index 0 on."""
    held: int = Field(ge=1, le=MAX_COUNT)
    """Number of worker pods that stay until the coordinator acknowledges this size."""


class ResponseTokens(ApiModel):
    """Lengths of the responses that the last step trained on, in tokens."""

    mean: float = 0.0
    """Mean length in tokens."""
    p75: float = 0.0
    """Third quartile of the lengths."""
    max: int = 0
    """Length of the longest response in tokens."""


class HeldOutReward(ApiModel):
    """Mean reward on held-out prompts."""

    before: float | None = None
    """Mean reward before the first step."""
    latest: float | None = None
    """Mean reward in the newest evaluation."""
    long_before: float | None = None
    """Mean reward before the first step on the quarter of prompts with the longest answers."""
    long_latest: float | None = None
    """Mean reward in the newest evaluation on these prompts."""


class DrawCounts(ApiModel):
    """What has become of the draws (one draw is one use of a prompt) so far."""

    trained: int = 0
    """Number of draws that an update has trained on."""
    zero_variance: int = 0
    """Number of draws whose rewards were all equal."""
    rejected: int = 0
    """Number of draws that were replaced because their rewards could not be computed."""
    deferred: int = 0
    """Number of draws that are in the long-prompt queue now."""


class KindCount(ApiModel):
    """Totals over the rounds of one kind."""

    rounds: int = 0
    """Number of rounds of this kind."""
    rollout_s: float = Field(default=0.0, alias="rolloutSeconds")
    """Seconds that the rollouts of these rounds took together."""
    samples: int = 0
    """Number of responses of these rounds that were trained on."""
    preemptions: int = 0
    """Number of times that engines preempted a request in these rounds."""


class WarmStartReport(ApiModel):
    """Supervised steps before the first round."""

    step: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of steps that are done."""
    first_loss: float | None = None
    """Mean loss of the first step."""
    loss: float | None = None
    """Mean loss of the last step."""
    seconds: float = 0.0
    """Seconds that the steps took, or had taken when their result was cached."""
    cached: bool = False
    """Whether a result that was there already is used."""


class DataTypes(ApiModel):
    """Types in which engines and trainers compute, and what follows from them."""

    engines: EngineDtype
    """Data type of the engines. auto: that of the checkpoint."""
    trainers: TrainerDtype
    """Data type of the layers of the trainers."""
    speedup: float | None = Field(default=None, ge=0, le=MAX_COUNT, alias="bfloat16Speedup")
    """How many times as fast as in float32 the pods multiply matrices in bfloat16. Unset: it was not measured."""
    max_log_prob_mismatch: float = Field(ge=0, le=MAX_COUNT)
    """Largest mean difference of their log-probabilities per token that is allowed."""


class ProgressUnit(StrEnum):
    """Unit in which progress is counted."""

    BYTES = "Bytes"
    STEPS = "Steps"
    ENGINES = "Engines"
    MEASUREMENTS = "Measurements"
    RESPONSES = "Responses"
    PODS = "Pods"


class Progress(ApiModel):
    """Progress of what the coordinator does now."""

    unit: ProgressUnit
    """What is counted."""
    done: int = Field(ge=0, le=MAX_COUNT)
    """Number of units that are done."""
    total: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of units in total. 0: it is not known."""
    detail: str = Field(default="", max_length=256)
    """What the coordinator works on, such as the repository that is downloaded."""


class PromptCounts(ApiModel):
    """How the prompts of the data are used."""

    train: int = Field(ge=0, le=MAX_COUNT)
    """Number of prompts to train on."""
    held_out: int = Field(ge=0, le=MAX_COUNT)
    """Number of prompts that are only used for evaluation."""
    too_long: int = Field(ge=0, le=MAX_COUNT)
    """Number of prompts left out because they exceed `data.maxPromptTokens` or leave no room for a full response."""
    repeating_held_out: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of rows left out because their prompt is held out."""


class RewardLoad(ApiModel):
    """How busy the reward workers are, from which the operator computes the number of reward pods."""

    queue_length: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of responses that wait for a worker."""
    oldest_wait_s: float = Field(default=0.0, ge=0, le=MAX_COUNT, alias="oldestWaitSeconds")
    """Seconds that the oldest waiting response has waited, of those that their group needs."""
    workers: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of workers that are connected."""
    busy: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of workers that score a response now."""


class RewardSurroundings(ApiModel):
    """What reward workers found in their pods when they started."""

    sandbox: list[SandboxLayer] | None = Field(default=None, max_length=16)
    """Layers of the sandbox that work in every worker."""
    gpu_sharing: list[Annotated[str, Field(max_length=MAX_MESSAGE_CHARACTERS)]] = Field(
        default_factory=list, max_length=MAX_REPORTED
    )
    """How colocated judges and engines share GPUs: MPS, or TimeSlicing and why."""


class RuntimeActivity(StrEnum):
    """What the coordinator does.

    Done: it has written everything and is about to end. Failing: it has found a mistake that a retry cannot fix and is
    about to end.
    """

    WAIT_FOR_WORKERS = "WaitForWorkers"
    DOWNLOAD = "Download"
    PREPARE_MODEL = "PrepareModel"
    WAIT_FOR_REWARD_PODS = "WaitForRewardPods"
    WAIT_FOR_ENVIRONMENT_PODS = "WaitForEnvironmentPods"
    START_ENGINES = "StartEngines"
    RESTORE = "Restore"
    PROFILE_ENGINES = "ProfileEngines"
    PROFILE_TRAINERS = "ProfileTrainers"
    PROFILE_SIZES = "ProfileSizes"
    PROFILE_JUDGES = "ProfileJudges"
    EVALUATE = "Evaluate"
    ROLLOUT = "Rollout"
    TRAIN = "Train"
    PUBLISH = "Publish"
    CHECKPOINT = "Checkpoint"
    DONE = "Done"
    FAILING = "Failing"


ENDING_ACTIVITIES: Final = frozenset({RuntimeActivity.DONE, RuntimeActivity.FAILING})
"""What a coordinator does just before the job ends with it."""


class Notice(ApiModel):
    """Something that happened in the attempt without ending it. The operator makes it an event."""

    number: int = Field(ge=1, le=MAX_COUNT)
    """Number of the notice within its attempt, from 1."""
    reason: str = Field(max_length=128)
    """Reason of the event: EngineLost, EngineDidNotSleep, FewPrompts, NoGenerationPrompt, ProfileMismatch,
    TrackerFailed, RecordsIncomplete, FactorsChanged, or the reason of an alarm."""
    message: str = Field(max_length=MAX_MESSAGE_CHARACTERS)
    """What happened, in one sentence."""


class ChosenFactors(ApiModel):
    """Settings that strategy Auto has chosen."""

    prompt_factor: float = Field(ge=1, le=16)
    """Value in place of `spec.rollout.tailBatching.promptFactor`."""
    response_factor: float = Field(ge=1, le=16)
    """Value in place of `spec.rollout.tailBatching.responseFactor`."""
    handover: Handover | None = None
    """Value in place of `spec.rollout.handover`."""
    frontier_width: int | None = Field(default=None, ge=1, le=65_536)
    """Value in place of `spec.rollout.admission.frontierWidth`."""
    since_step: int = Field(ge=0, le=MAX_COUNT)
    """Number of the first step with these settings."""
    why: str = Field(max_length=MAX_MESSAGE_CHARACTERS)
    """What was changed, and what the change is expected to bring."""


class Alarm(ApiModel):
    """Symptom of a job that runs but does not learn, listed for as long as it lasts."""

    reason: str = Field(min_length=1, max_length=128)
    """Kind of the alarm (`docs/reference/reasons.md`)."""
    message: str = Field(max_length=MAX_MESSAGE_CHARACTERS)
    """What was seen, the likely cause, and what to do."""
    step: int = Field(ge=0)
    """Step at which the alarm was raised."""


class RuntimeStatus(ApiModel):
    """What the coordinator reports: progress, figures of the last step, alarms and rounds.

    Figures are reported at most once per second, and what the operator acts on at once.
    """

    attempt: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of the attempt whose coordinator reports."""
    step: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of steps done."""
    steps: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of steps that the spec asks for, and those that deferred prompts have taken at the end."""
    round: RoundStatus | None = None
    """The round that runs now."""
    recent_rounds: list[RoundSummary] = Field(default_factory=list, max_length=MAX_REPORTED)
    """Newest finished rounds, oldest first, so that an operator that was away sees them, too."""
    notices: list[Notice] = Field(default_factory=list, max_length=MAX_REPORTED)
    """Newest notices of this attempt, oldest first, so that an operator that was away sees them, too."""
    alarms: list[Alarm] = Field(default_factory=list, max_length=MAX_REPORTED)
    """Symptoms of a job that runs but does not learn, oldest first."""
    applied_epoch: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of the newest assignment that was carried out."""
    size: JobSize | None = None
    """Number of worker pods that the job uses. Unset: all of them."""
    rejected_epoch: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of the newest assignment that came too late or was impossible."""
    rejected_reason: str = Field(default="", max_length=MAX_MESSAGE_CHARACTERS)
    """Why that assignment was rejected."""
    refused_tp_size: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Tensor-parallel size that the engines refused, if that is why the assignment was rejected. 0: it had another
    reason."""
    trainer_pods: list[Annotated[int, Field(ge=0, le=MAX_COUNT)]] = Field(default_factory=list, max_length=4_096)
    """Indices of the worker pods that train while the others sample."""
    tp_size: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Tensor-parallel size of the engines. 0: there are no engines yet."""
    tp_sizes: list[Annotated[int, Field(ge=0, le=MAX_COUNT)]] = Field(default_factory=list, max_length=16)
    """Tensor-parallel sizes that fit the model and the pods."""
    repurposing: dict[RoundKind, RepurposingBenefit] = Field(default_factory=dict)
    """Expected benefit of repurposing pods, by kind of round, with trigger Adaptive."""
    auto: ChosenFactors | None = None
    """Settings that strategy Auto has chosen, from the first round on."""
    rollout_times: RolloutTimes | None = None
    """Times of a rollout by tensor-parallel size, for the parallelism planner, if the job has a profile."""
    reward: float | None = None
    """Mean reward of the responses that the last step trained on."""
    held_out: HeldOutReward = Field(default_factory=HeldOutReward)
    """Mean reward on held-out prompts before the training and now."""
    response_tokens: ResponseTokens = Field(default_factory=ResponseTokens)
    """Lengths of the responses that the last step trained on, in tokens."""
    tokens_per_s: float = Field(default=0.0, alias="tokensPerSecond")
    """Response tokens that the last step trained on, per second of the step."""
    step_s: _Seconds = Field(default=0.0, alias="stepSeconds")
    """Seconds that the last step took."""
    bubble_share: float = Field(default=0.0, ge=0, le=1)
    """Share of engine time in which engines were idle during the last rollout."""
    draws: DrawCounts = Field(default_factory=DrawCounts)
    """What has become of the draws (one draw is one use of a prompt) so far."""
    short: KindCount = Field(default_factory=KindCount)
    """Totals over the short rounds so far."""
    long: KindCount = Field(default_factory=KindCount)
    """Totals over the long rounds so far."""
    full: KindCount = Field(default_factory=KindCount)
    """Totals over the rounds so far of strategies without short rounds."""
    prompts: PromptCounts | None = None
    """How the prompts of the data are used. Unset with a built-in task."""
    data_types: DataTypes | None = None
    """Types in which engines and trainers compute."""
    warm_start: WarmStartReport | None = None
    """Supervised steps before the first round, if the job asks for them."""
    rewards: RewardLoad | None = None
    """How busy the reward workers are, if `reward.maxPods` lets the operator add pods. Reported after a change, at most
    every 2 s."""
    reward_workers: RewardSurroundings | None = None
    """Sandbox layers and GPU sharing that reward workers found when they started."""
    checkpoint_step: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Step of the newest checkpoint."""
    final_model: str | None = Field(default=None, max_length=4096)
    """Path of the final model in the storage of the job."""
    activity: RuntimeActivity | None = None
    """What the coordinator does now."""
    activity_s: dict[RuntimeActivity, _Seconds] = Field(default_factory=dict, alias="activitySeconds")
    """Seconds that the coordinator has spent on each activity in this attempt."""
    progress: Progress | None = None
    """Progress of `activity`, if it is known."""
