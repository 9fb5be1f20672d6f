"""How responses are sampled: the round policy and the inference engine."""

from enum import StrEnum
from typing import Final

from pydantic import Field

from longshore.api.base import ApiModel, Freeform, Quantity
from longshore.api.rules import Rule


class OnPolicy(StrEnum):
    """Which weights may have sampled a token that is trained on."""

    STRICT = "Strict"
    RELAXED = "Relaxed"


class Strategy(StrEnum):
    """Preset of a round policy."""

    SYNCHRONOUS = "Synchronous"
    TAIL_BATCHING = "TailBatching"
    PARTIAL_ROLLOUT = "PartialRollout"
    REORDER_ROLLOUT = "ReorderRollout"
    GROUP_PIPELINE = "GroupPipeline"
    AUTO = "Auto"


class Leftovers(StrEnum):
    """What happens to the tokens of a response that a round did not finish."""

    DROP_TOKENS = "DropTokens"
    KEEP_TOKENS = "KeepTokens"


class Handover(StrEnum):
    """When the trainer gets groups, and how many updates follow."""

    AFTER_ROUND = "AfterRound"
    STREAMED = "Streamed"
    PIPELINED = "Pipelined"


class RepurposeTrigger(StrEnum):
    """When pods go from rollout to training within a round."""

    ADAPTIVE = "Adaptive"
    FIXED = "Fixed"
    NEVER = "Never"


class Parallelism(StrEnum):
    """Whether the tensor-parallel size of the engines follows the load."""

    FIXED = "Fixed"
    ADAPTIVE = "Adaptive"


class OnFinish(StrEnum):
    """What happens to draws that still wait when the last step is done."""

    DRAIN = "Drain"
    LEAVE = "Leave"


class EngineBackend(StrEnum):
    """Inference engine."""

    VLLM = "VLLM"
    FAKE = "Fake"


class EngineDtype(StrEnum):
    """Type of weights and activations, by its name in vLLM."""

    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class Quantization(StrEnum):
    """Type into which engines round weights."""

    FP8 = "FP8"


class WeightTransfer(StrEnum):
    """How new weights reach the engines."""

    AUTO = "Auto"
    DIRECT = "Direct"
    OBJECT_STORE = "ObjectStore"


class TailBatchingSettings(ApiModel):
    """Settings of tail batching (RollPacker, section 3)."""

    prompt_factor: float = Field(default=1.25, ge=1, le=16)
    """Number of prompts that a short round starts, as a multiple of promptsPerStep, rounded up."""
    response_factor: float = Field(default=1.0, ge=1, le=16)
    """Number of responses to each prompt that a short round starts, as a multiple of responsesPerPrompt, rounded up;
    the first to finish are used. Above 1, short responses win within a prompt, which changes what is learned."""


_PARTIAL_ROLLOUT_RULES: Final = (
    Rule(
        "groupFactor",
        "self.groupFactor <= double(self.maxPolicyVersions)",
        "groupFactor must not exceed maxPolicyVersions, or left-over groups cannot finish in time: lower it",
    ),
)


class PartialRolloutSettings(ApiModel, rules=_PARTIAL_ROLLOUT_RULES):
    """Settings of active partial rollout (APRIL, section 2.2)."""

    group_factor: float = Field(default=2.0, ge=1, le=16)
    """Number of groups that a round starts, as a multiple of promptsPerStep."""
    max_policy_versions: int = Field(default=5, ge=1, le=1_000)
    """Largest number of policy versions that may sample one response. A round waits for groups that would exceed it."""


class ReorderRolloutSettings(ApiModel):
    """Settings of reorder rollout (verl's recipe)."""

    max_postponements: int = Field(default=4, ge=1, le=1_000)
    """Number of rounds that may postpone a prompt. The next round is long and takes those that waited longest."""
    group_factor: float = Field(default=2.0, ge=1, le=16)
    """Number of groups in a round, as a multiple of promptsPerStep, at most maxPostponements + 1 and as many as the
    engines hold."""
    length_grouping: bool = False
    """Whether a round takes prompts of similar predicted length."""


class AutoSettings(ApiModel):
    """Settings of strategy Auto.

    It begins with the settings of `tailBatching` and changes its factors between rounds: promptFactor to at most 2 or
    that of `tailBatching`, and responseFactor to at most that of `tailBatching`, so that by default responses to a
    prompt do not race. If trainers have GPUs of their own, it also changes `handover` and `admission.frontierWidth`
    where these are unset.
    """

    margin: float = Field(default=0.03, gt=0, lt=1)
    """Share of the step time that a change must be predicted to save."""


class AdmissionSettings(ApiModel):
    """How many requests run at once. These fields combine with each other and with any strategy."""

    frontier_width: int | None = Field(default=None, ge=1, le=65_536)
    """Number of groups that one engine serves at once, in their order. Unset: all; with GroupPipeline as many as the KV
    caches hold."""
    max_active_per_engine: int | None = Field(default=None, ge=1, le=65_536)
    """Largest number of requests on one engine at once. Unset: no limit."""
    adaptive: bool = False
    """Whether maxActivePerEngine follows the KV-cache use and preemptions of each engine."""


class RepurposingSettings(ApiModel):
    """When pods leave the rollout to train for the rest of a round with handover Streamed (RollPacker, section 4.4)."""

    trigger: RepurposeTrigger = RepurposeTrigger.ADAPTIVE
    """When pods leave the rollout to train. Adaptive: when 20 % to 50 % of the requests have finished, the rest fits
    the other pods, and the step is expected to end sooner. Fixed: at `fraction`. Never: no pod leaves."""
    fraction: float = Field(default=0.3, gt=0, lt=1)
    """Share of the prompts of the step whose groups are in the batch when pods leave, with trigger Fixed."""


class EngineSettings(ApiModel):
    """Inference engines. Each is one tensor-parallel group."""

    backend: EngineBackend = EngineBackend.VLLM
    """Inference engine. Fake: a deterministic engine without a model, for tests."""
    tensor_parallel_size: int = Field(default=1, ge=1, le=64)
    """Number of GPUs of an engine. It divides gpusPerPod or is a multiple of it: then an engine has several whole
    pods."""
    parallelism: Parallelism = Parallelism.FIXED
    """Whether the tensor-parallel size follows the load. Fixed: it is `tensorParallelSize`. Adaptive: engines regroup
    between rounds when preemptions rise or stay away."""
    max_num_seqs: int = Field(default=256, ge=1, le=65_536)
    """Largest number of requests that an engine runs at once."""
    kv_cache: Quantity | None = None
    """Memory for the KV cache of an engine. Unset: what `gpuMemoryUtilization` leaves."""
    gpu_memory_utilization: float = Field(default=0.5, gt=0, le=1)
    """Share of GPU memory that an engine may use."""
    dtype: EngineDtype = EngineDtype.AUTO
    """Data type of weights and activations in the engine. auto: that of the checkpoint."""
    quantization: Quantization | None = None
    """Type into which engines on GPUs round the weights of linear layers whenever new ones come, and their inputs. FP8:
    8-bit floating point, with a scale for each channel and token. Unset: none."""
    enforce_eager: bool = False
    """Whether engines skip compilation and CUDA graphs, which makes them start faster and sample more slowly."""
    sleep_level: int = Field(default=1, ge=0, le=2)
    """Sleep level of vLLM while the trainer uses the GPU. 0: engines stay awake."""
    weight_transfer: WeightTransfer = WeightTransfer.AUTO
    """How new weights reach the engines. Direct: by CUDA IPC or NCCL broadcast (shared memory or gloo on the CPU).
    ObjectStore: through Ray's object store and the host. Auto: Direct on GPUs, ObjectStore elsewhere."""
    extra_args: Freeform = Field(default_factory=dict)
    """Further arguments of the vLLM engine, by their Python names. Arguments that follow from other fields are refused.
    Speculative decoding and chunked prefill need GPUs."""


class Rollout(ApiModel):
    """How responses are sampled: the strategy for long responses, and the inference engines."""

    on_policy: OnPolicy = OnPolicy.STRICT
    """Which weights may sample the tokens of a step. Strict: those that the step starts from. Relaxed: older ones
    too."""
    strategy: Strategy = Strategy.TAIL_BATCHING
    """How a round handles long responses. Synchronous: waits for them. TailBatching: moves them into separate rounds.
    ReorderRollout: trains on the first to finish and postpones the others. GroupPipeline: trains on complete groups
    while others run. PartialRollout: continues them with newer weights. Auto: TailBatching with settings found by
    simulation."""
    tail_batching: TailBatchingSettings = Field(default_factory=TailBatchingSettings)
    """Settings of strategy TailBatching, from which Auto starts."""
    partial_rollout: PartialRolloutSettings = Field(default_factory=PartialRolloutSettings)
    """Settings of strategy PartialRollout."""
    reorder_rollout: ReorderRolloutSettings = Field(default_factory=ReorderRolloutSettings)
    """Settings of strategy ReorderRollout."""
    auto: AutoSettings = Field(default_factory=AutoSettings)
    """Settings of strategy Auto."""
    admission: AdmissionSettings = Field(default_factory=AdmissionSettings)
    """How many requests and groups engines serve at once."""
    leftovers: Leftovers | None = None
    """What happens to the tokens of unfinished responses. DropTokens: a later round samples the response anew.
    KeepTokens: a later round continues it with newer weights. Unset: KeepTokens for PartialRollout, otherwise
    DropTokens."""
    handover: Handover | None = None
    """When the trainer gets the groups of a round. AfterRound: at its end. Streamed: while it runs, for an update at
    its end; at its end if it makes several. Pipelined: while it runs, with an update for every promptsPerUpdate groups.
    Unset: Pipelined for GroupPipeline, otherwise AfterRound."""
    repurposing: RepurposingSettings = Field(default_factory=RepurposingSettings)
    """When pods leave the rollout to train for the rest of a round, with handover Streamed."""
    max_log_prob_mismatch: float | None = Field(default=None, gt=0, le=1_000)
    """Largest mean difference |log-probability of trainer - engine| per token of a step. Above it, a Strict job samples
    the round again once and then fails; a Relaxed one raises an alarm. Unset: 0.001 if engines and trainers compute in
    float32, otherwise 0.1."""
    on_finish: OnFinish = OnFinish.DRAIN
    """What happens to deferred prompts after the last step. Drain: further long rounds train on them. Leave: they are
    only counted."""
    engine: EngineSettings = Field(default_factory=EngineSettings)
    """Inference engines: their library, size, memory and data type."""

    @property
    def keeps_tokens(self) -> bool:
        """Whether unfinished responses are continued in a later round."""
        return self.strategy is Strategy.PARTIAL_ROLLOUT or self.leftovers is Leftovers.KEEP_TOKENS

    @property
    def is_pipelined(self) -> bool:
        """Whether the trainer updates while the round still runs."""
        return self.effective_handover is Handover.PIPELINED

    @property
    def is_streamed(self) -> bool:
        """Whether gradients are computed while the round still runs, for one update at its end."""
        return self.effective_handover is Handover.STREAMED

    @property
    def repurposes(self) -> bool:
        """Whether pods may go from rollout to training within a round."""
        return self.is_streamed and self.repurposing.trigger is not RepurposeTrigger.NEVER

    @property
    def effective_handover(self) -> Handover:
        """`handover`, or that of the strategy where it is unset; Auto may choose another one then."""
        preset = Handover.PIPELINED if self.strategy is Strategy.GROUP_PIPELINE else Handover.AFTER_ROUND
        return self.handover or preset
