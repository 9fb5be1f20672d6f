"""RLJob.status.runtime: what the coordinator reports. Only the coordinator writes it, and it writes nothing else."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from longshore.api.base import ApiModel
from longshore.api.limits import MAX_COUNT, MAX_MESSAGE_CHARACTERS, MAX_REPORTED
from longshore.api.reward import SandboxLayer
from longshore.api.rollout import Handover
from longshore.api.round_status import RepurposingBenefit, RolloutTimes, RoundKind, RoundStatus, RoundSummary
from longshore.api.sharing import RuntimeSharing

_Seconds = Annotated[float, Field(ge=0, le=MAX_COUNT)]


class JobSize(ApiModel):
    """Size of an elastic job."""

    epoch: int = Field(ge=0, le=MAX_COUNT)
    """Assignment that asks for it."""
    workers: int = Field(ge=1, le=MAX_COUNT)
    """Worker pods from index 0 on."""
    held: int = Field(ge=1, le=MAX_COUNT)
    """Pods that stay until this is acknowledged."""


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
    """Outcomes of the draws so far."""

    trained: int = 0
    """Consumed by an update."""
    zero_variance: int = 0
    """All rewards of the group were equal: trained with advantages of 0, or left out with dynamicSampling."""
    rejected: int = 0
    """Replaced by a fresh draw because their reward could not be computed."""
    deferred: int = 0
    """In the long-prompt queue now."""


class KindCount(ApiModel):
    """Totals over the rounds of one kind."""

    rounds: int = 0
    """Rounds of this kind."""
    rollout_s: float = Field(default=0.0, alias="rolloutSeconds")
    """Rollout time of these rounds."""
    samples: int = 0
    """Responses of these rounds that were trained on."""
    preemptions: int = 0
    """Requests that engines preempted in these rounds."""


class WarmStart(ApiModel):
    """The supervised warm start of the built-in model."""

    seconds: float = 0.0
    """Seconds that it took, or had taken when its result was cached."""
    cached: bool = False
    """Whether an earlier job's result was used."""


class ProgressUnit(StrEnum):
    """Unit in which progress is counted."""

    BYTES = "Bytes"
    STEPS = "Steps"
    ENGINES = "Engines"
    MEASUREMENTS = "Measurements"
    RESPONSES = "Responses"
    PODS = "Pods"


class Progress(ApiModel):
    """Progress of an activity."""

    unit: ProgressUnit
    """What is counted."""
    done: int = Field(ge=0, le=MAX_COUNT)
    """Units that are done."""
    total: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Units in total; 0: not known."""
    detail: str = Field(default="", max_length=256)
    """What the activity works on, such as the repository that is downloaded."""


class PromptCounts(ApiModel):
    """How the prompts of the job are used."""

    train: int = Field(ge=0, le=MAX_COUNT)
    """Prompts to train on."""
    held_out: int = Field(ge=0, le=MAX_COUNT)
    """Prompts for evaluation only."""
    too_long: int = Field(ge=0, le=MAX_COUNT)
    """Prompts that were left out because they have more tokens than `data.maxPromptTokens`, or leave no room in the
    context for a response of full length."""
    repeating_held_out: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Rows that were left out of training because their prompt is held out."""


class RewardLoad(ApiModel):
    """How the workers by which reward pods are sized keep up with the rollout."""

    queue_length: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Responses that wait for a worker."""
    oldest_wait_s: float = Field(default=0.0, ge=0, le=MAX_COUNT, alias="oldestWaitSeconds")
    """Longest wait of a response that its group waits for."""
    workers: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Workers that are connected."""
    busy: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Workers that score a response."""


class RewardSurroundings(ApiModel):
    """What reward workers found in their pods."""

    sandbox: list[SandboxLayer] | None = Field(default=None, max_length=16)
    """Layers that work around model-written code in every worker so far; unset: no worker runs such code."""
    gpu_sharing: list[Annotated[str, Field(max_length=MAX_MESSAGE_CHARACTERS)]] = Field(
        default_factory=list, max_length=MAX_REPORTED
    )
    """How colocated judges and engines share GPUs, each way once: MPS, or TimeSlicing and why."""


class RuntimeActivity(StrEnum):
    """What the coordinator does.

    Done: it has written everything and is about to end. Failing: it has found a mistake that a retry cannot fix and is
    about to end.
    """

    WAIT_FOR_WORKERS = "WaitForWorkers"
    DOWNLOAD = "Download"
    PREPARE_MODEL = "PrepareModel"
    WAIT_FOR_REWARD_PODS = "WaitForRewardPods"
    WAIT_FOR_TURN = "WaitForTurn"
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
    """Something that happened and did not end the attempt; the operator makes it an event."""

    number: int = Field(ge=1, le=MAX_COUNT)
    """Number of the notice within its attempt, from 1."""
    reason: str = Field(max_length=128)
    """EngineLost, EngineDidNotSleep, FewPrompts, NoGenerationPrompt, ProfileMismatch, TrackerFailed, RecordsIncomplete,
    FactorsChanged, or that of an alarm."""
    message: str = Field(max_length=MAX_MESSAGE_CHARACTERS)
    """One sentence."""


class ChosenFactors(ApiModel):
    """What strategy Auto has chosen."""

    prompt_factor: float = Field(ge=1, le=16)
    """As `spec.rollout.tailBatching.promptFactor`."""
    response_factor: float = Field(ge=1, le=16)
    """As `spec.rollout.tailBatching.responseFactor`."""
    handover: Handover | None = None
    """As `spec.rollout.handover`; not reported where that is set."""
    frontier_width: int | None = Field(default=None, ge=1, le=65_536)
    """As `spec.rollout.admission.frontierWidth`."""
    since_step: int = Field(ge=0, le=MAX_COUNT)
    """Step from which on rounds have them."""
    why: str = Field(max_length=MAX_MESSAGE_CHARACTERS)
    """What was changed, and what that is expected to bring."""


class Alarm(ApiModel):
    """A symptom of a job that runs but does not learn, listed for as long as it lasts."""

    reason: str = Field(min_length=1, max_length=128)
    """LogProbMismatch, RewardsTimeOut, RewardsFault, RewardsAllZero, RewardsAllEqual, GradientZero, ResponsesAllCut,
    HeldOutRewardFell."""
    message: str = Field(max_length=MAX_MESSAGE_CHARACTERS)
    """What is seen, the likely cause, and what to do."""
    step: int = Field(ge=0)
    """Step at which it was raised."""


class RuntimeStatus(ApiModel):
    """What the coordinator reports: figures at most once per second, what the operator acts on at once."""

    attempt: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Attempt that reports."""
    step: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Steps done; more than `steps` if deferred draws took further steps at the end (`rollout.onFinish`)."""
    steps: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Steps that the spec asks for (`algorithm.steps`)."""
    round: RoundStatus | None = None
    """The current round."""
    recent_rounds: list[RoundSummary] = Field(default_factory=list, max_length=MAX_REPORTED)
    """The newest finished rounds, oldest first: an operator that was away catches up."""
    notices: list[Notice] = Field(default_factory=list, max_length=MAX_REPORTED)
    """The newest notices of this attempt, oldest first: an operator that was away catches up."""
    alarms: list[Alarm] = Field(default_factory=list, max_length=MAX_REPORTED)
    """Symptoms of a job that does not learn, oldest first."""
    applied_epoch: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Newest assignment that was carried out."""
    size: JobSize | None = None
    """Size that the job runs with; unset: all worker pods."""
    sharing: RuntimeSharing | None = None
    """Turns on the GPUs, if the job shares them."""
    rejected_epoch: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Newest assignment that came too late or was impossible."""
    rejected_reason: str = Field(default="", max_length=MAX_MESSAGE_CHARACTERS)
    """Why that assignment was rejected."""
    refused_tp_size: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Tensor-parallel size that the engines refused, if that was the reason; 0: there was another reason."""
    trainer_pods: list[Annotated[int, Field(ge=0, le=MAX_COUNT)]] = Field(default_factory=list, max_length=4_096)
    """Worker pods that train while the others sample."""
    tp_size: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Tensor-parallel size of the engines; 0: there are none yet."""
    tp_sizes: list[Annotated[int, Field(ge=0, le=MAX_COUNT)]] = Field(default_factory=list, max_length=16)
    """Sizes that suit the model and the pods."""
    repurposing: dict[RoundKind, RepurposingBenefit] = Field(default_factory=dict)
    """Expected benefit at the newest milestone of each kind of round, with `spec.rollout.repurposing.trigger` Adaptive.
    Empty until the first step is done."""
    auto: ChosenFactors | None = None
    """Factors of strategy Auto, from the first round on."""
    rollout_times: RolloutTimes | None = None
    """Times for the parallelism planner, if the job has a profile."""
    reward: float | None = None
    """Mean training reward of the last step."""
    held_out: HeldOutReward = Field(default_factory=HeldOutReward)
    """Held-out reward."""
    response_tokens: ResponseTokens = Field(default_factory=ResponseTokens)
    """Response lengths of the last step."""
    tokens_per_s: float = Field(default=0.0, alias="tokensPerSecond")
    """Response tokens trained on per second of the last step."""
    step_s: _Seconds = Field(default=0.0, alias="stepSeconds")
    """Seconds that the last step took."""
    bubble_share: float = Field(default=0.0, ge=0, le=1)
    """Share of engine time in which engines were idle during the last rollout."""
    draws: DrawCounts = Field(default_factory=DrawCounts)
    """Outcomes of the draws so far."""
    short: KindCount = Field(default_factory=KindCount)
    """Short rounds so far."""
    long: KindCount = Field(default_factory=KindCount)
    """Long rounds so far."""
    full: KindCount = Field(default_factory=KindCount)
    """Rounds so far of policies without short rounds."""
    prompts: PromptCounts | None = None
    """How the prompts are used, unless the data is built in."""
    warm_start: WarmStart | None = None
    """The warm start, if the job asks for one."""
    rewards: RewardLoad | None = None
    """How rewards keep up, if `reward.maxPods` lets the operator add pods; reported after a change, at most every 2 s.
    """
    reward_workers: RewardSurroundings | None = None
    """Sandbox layers and GPU sharing that reward workers found when they started."""
    checkpoint_step: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Step of the newest checkpoint."""
    final_model: str | None = Field(default=None, max_length=4096)
    """Path of the final model in the storage."""
    activity: RuntimeActivity | None = None
    """What the coordinator does now."""
    activity_s: dict[RuntimeActivity, _Seconds] = Field(default_factory=dict, alias="activitySeconds")
    """Seconds that the coordinator has spent in this attempt on each activity, without the time on the current one."""
    progress: Progress | None = None
    """Progress of `activity`, if it is known; that of a rollout is in `round`."""
