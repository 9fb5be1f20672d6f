"""RLJob.status.runtime: what the coordinator reports. Nobody else writes it, and it writes nothing else."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from longshore.api.base import ApiModel
from longshore.api.limits import MAX_COUNT, MAX_MESSAGE_CHARACTERS, MAX_REPORTED
from longshore.api.reward import SandboxLayer

_Seconds = Annotated[float, Field(ge=0, le=MAX_COUNT)]


class RoundKind(StrEnum):
    """Kind of a round."""

    SHORT = "Short"
    LONG = "Long"
    FULL = "Full"


class PodLoad(ApiModel):
    """What the engines of one worker pod bear."""

    pod: int = Field(ge=0, le=MAX_COUNT)
    """Index of the pod."""
    gpus: int = Field(ge=0, le=MAX_COUNT)
    """GPUs of its engines (1 for a pod without GPUs)."""
    kv_capacity_tokens: int = Field(ge=0, le=MAX_COUNT)
    """Tokens that their KV caches hold."""
    running_tokens: int = Field(ge=0, le=MAX_COUNT)
    """Tokens of the requests that they run, prompts included."""


class RolloutLoad(ApiModel):
    """How full the engines are and will be: what decides whether pods are repurposed (RollPacker, section 4.4)."""

    projected_kv_peak_tokens: int = Field(ge=0, le=MAX_COUNT)
    """Most tokens that the requests which run now will hold at once, by the lengths of earlier rounds."""
    pods: list[PodLoad] = Field(max_length=4_096)
    """Worker pods whose engines sample."""


class RepurposingBenefit(ApiModel):
    """What repurposing pods is expected to change in a step, by the job's own rounds of that kind."""

    rollout_longer_s: float | None = Field(default=None, ge=-MAX_COUNT, le=MAX_COUNT, alias="rolloutLongerSeconds")
    """The price: fewer engines, and requests whose tokens are computed again. Unset: no round of that kind is over."""
    training_shorter_s: float | None = Field(default=None, ge=-MAX_COUNT, le=MAX_COUNT, alias="trainingShorterSeconds")
    """The gain: gradients that are computed while the round still runs. Unset: likewise."""
    wanted: bool
    """Whether pods should be repurposed."""
    trial: bool = False
    """Wanted although it may cost: nothing is known of rounds of this kind, or no longer."""


class RoundSummary(ApiModel):
    """A round that is over."""

    number: int = Field(ge=1, le=MAX_COUNT)
    """The round of step k has number k."""
    kind: RoundKind
    """Short, Long or Full."""
    preemptions: int = Field(ge=0, le=MAX_COUNT)
    """Requests that engines preempted in it."""
    requests: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Requests that it launched."""


class RolloutTimes(ApiModel):
    """What the job's own profile says about tensor-parallel sizes (`spec.profiling`)."""

    switch_s: float = Field(ge=0, le=MAX_COUNT, alias="switchSeconds")
    """What a regroup takes."""
    preemption_s: float = Field(ge=0, le=MAX_COUNT, alias="preemptionSeconds")
    """What a preemption adds to a round."""
    round_s: dict[RoundKind, Annotated[dict[int, _Seconds], Field(max_length=16)]] = Field(alias="roundSeconds")
    """Rollout of a round without preemptions, by kind and size."""
    preemptions: dict[RoundKind, Annotated[dict[int, _Seconds], Field(max_length=16)]] = Field(default_factory=dict)
    """Preemptions in a round, by kind and size."""


class RoundStatus(ApiModel):
    """The round that runs now."""

    number: int = Field(ge=0, le=MAX_COUNT)
    """Rounds so far; the round of step k has number k."""
    kind: RoundKind
    """Short (speculative), Long (no speculation) or Full (policies without short rounds)."""
    fraction_finished: float = Field(default=0.0, ge=0, le=1)
    """Finished requests over all of the round: launched ones, and those that it still has to launch."""
    load: RolloutLoad | None = None
    """At milestones, where pods may be repurposed (`spec.rollout.repurposing.trigger`)."""


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


class ProgressUnit(StrEnum):
    """What progress is counted in."""

    BYTES = "Bytes"
    STEPS = "Steps"
    ENGINES = "Engines"
    MEASUREMENTS = "Measurements"
    RESPONSES = "Responses"
    PODS = "Pods"


class Progress(ApiModel):
    """How far an activity is."""

    unit: ProgressUnit
    """What is counted."""
    done: int = Field(ge=0, le=MAX_COUNT)
    """So many are done."""
    total: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Of so many; 0: not known."""
    detail: str = Field(default="", max_length=256)
    """What the activity works on, such as the repository that is downloaded."""


class PromptCounts(ApiModel):
    """What the data of the job comes to."""

    train: int = Field(ge=0, le=MAX_COUNT)
    """Prompts to train on."""
    held_out: int = Field(ge=0, le=MAX_COUNT)
    """Prompts that are scored only."""
    too_long: int = Field(ge=0, le=MAX_COUNT)
    """Prompts that were left out, since they have more tokens than `data.maxPromptTokens`, or than the context leaves
    for them with a response of full length."""


class RewardLoad(ApiModel):
    """How the workers of the reward pods keep up with the rollout."""

    queue_length: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Responses that wait for a worker."""
    oldest_wait_s: float = Field(default=0.0, ge=0, le=MAX_COUNT, alias="oldestWaitSeconds")
    """Longest wait of a response that its group waits for."""
    workers: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Workers that are there."""
    busy: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Workers that score a response."""


class RewardSurroundings(ApiModel):
    """What reward workers found where they run."""

    sandbox: list[SandboxLayer] | None = Field(default=None, max_length=16)
    """Layers that hold around model-written code in every worker that has been there; unset: none runs such code."""
    gpu_sharing: list[Annotated[str, Field(max_length=MAX_MESSAGE_CHARACTERS)]] = Field(
        default_factory=list, max_length=MAX_REPORTED
    )
    """How judges beside engines share GPUs, each way once: MPS, or TimeSlicing and why."""


class RuntimeActivity(StrEnum):
    """What the coordinator does.

    Done: it has written everything, and is about to end. Failing: it has found a mistake that no retry mends, and is
    about to end.
    """

    WAIT_FOR_WORKERS = "WaitForWorkers"
    DOWNLOAD = "Download"
    PREPARE_MODEL = "PrepareModel"
    WAIT_FOR_REWARD_PODS = "WaitForRewardPods"
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
    """Something that went wrong and did not end the attempt; the operator makes it an event."""

    number: int = Field(ge=1, le=MAX_COUNT)
    """Notices of an attempt are counted."""
    reason: str = Field(max_length=128)
    """EngineLost, EngineDidNotSleep, FewPrompts, ProfileMismatch, TrackerFailed, RecordsIncomplete, or that of an
    alarm."""
    message: str = Field(max_length=MAX_MESSAGE_CHARACTERS)
    """One sentence."""


class Alarm(ApiModel):
    """A sign that the job does not learn although everything runs, for as long as it lasts."""

    reason: str = Field(min_length=1, max_length=128)
    """LogProbMismatch, RewardsTimeOut, RewardsFault, RewardsAllZero, RewardsAllEqual, GradientZero, ResponsesAllCut,
    HeldOutRewardFell."""
    message: str = Field(max_length=MAX_MESSAGE_CHARACTERS)
    """What is seen, the likely cause, and what to do."""
    step: int = Field(ge=0)
    """Step at which it was raised."""


class RuntimeStatus(ApiModel):
    """What the coordinator reports, at milestones only."""

    attempt: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Attempt that reports."""
    step: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Steps done; more than `steps` where deferred draws took steps of their own at the end (`rollout.onFinish`)."""
    steps: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Steps asked for (`algorithm.steps`)."""
    round: RoundStatus | None = None
    """The current round."""
    recent_rounds: list[RoundSummary] = Field(default_factory=list, max_length=MAX_REPORTED)
    """The newest finished rounds, oldest first: an operator that was away catches up."""
    notices: list[Notice] = Field(default_factory=list, max_length=MAX_REPORTED)
    """The newest notices of this attempt, oldest first: an operator that was away catches up."""
    alarms: list[Alarm] = Field(default_factory=list, max_length=MAX_REPORTED)
    """Signs that the job does not learn, oldest first."""
    applied_epoch: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Newest assignment that was carried out."""
    rejected_epoch: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Newest assignment that came too late or was impossible."""
    rejected_reason: str = Field(default="", max_length=MAX_MESSAGE_CHARACTERS)
    """Why."""
    refused_tp_size: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Tensor-parallel size that the engines did not take, where that is why; 0: something else is."""
    trainer_pods: list[Annotated[int, Field(ge=0, le=MAX_COUNT)]] = Field(default_factory=list, max_length=4_096)
    """Worker pods that train while the others sample."""
    tp_size: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Tensor-parallel size of the engines; 0: there are none yet."""
    tp_sizes: list[Annotated[int, Field(ge=0, le=MAX_COUNT)]] = Field(default_factory=list, max_length=16)
    """Sizes that suit the model and the pods."""
    repurposing: dict[RoundKind, RepurposingBenefit] = Field(default_factory=dict)
    """As of the newest milestone of each kind of round, where `spec.rollout.repurposing.trigger` is Adaptive. Empty
    until the first step is done."""
    rollout_times: RolloutTimes | None = None
    """For the parallelism planner, where the job has a profile."""
    reward: float | None = None
    """Mean training reward of the last step."""
    held_out: HeldOutReward = Field(default_factory=HeldOutReward)
    """Held-out reward."""
    response_tokens: ResponseTokens = Field(default_factory=ResponseTokens)
    """Response lengths of the last step."""
    tokens_per_s: float = Field(default=0.0, alias="tokensPerSecond")
    """Response tokens trained on per second of the last step."""
    step_s: _Seconds = Field(default=0.0, alias="stepSeconds")
    """What the last step took."""
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
    prompts: PromptCounts | None = None
    """The prompts of data that is not built in."""
    warm_start: WarmStart | None = None
    """The warm start, where the job asks for one."""
    rewards: RewardLoad | None = None
    """How rewards keep up, where `reward.maxPods` lets the operator add pods: told every 2 s at most, when it moves."""
    reward_workers: RewardSurroundings | None = None
    """What protects and what slows scoring, as reward workers find it when they start."""
    checkpoint_step: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Step of the newest checkpoint."""
    final_model: str | None = Field(default=None, max_length=4096)
    """Where the final model lies in the storage."""
    activity: RuntimeActivity | None = None
    """What the coordinator does now."""
    progress: Progress | None = None
    """How far `activity` is, where that is known; for a rollout `round` says it."""
