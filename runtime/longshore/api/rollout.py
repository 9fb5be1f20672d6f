"""How responses are sampled: the round policy and the inference engine."""

from enum import StrEnum

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


class WeightTransfer(StrEnum):
    """How new weights reach the engines."""

    AUTO = "Auto"
    DIRECT = "Direct"
    OBJECT_STORE = "ObjectStore"


class TailBatchingSettings(ApiModel):
    """Settings of tail batching (RollPacker, section 3)."""

    prompt_factor: float = Field(default=1.25, ge=1, le=16)
    """eta for prompts: a short round starts ceil(eta * P0) of them."""
    response_factor: float = Field(default=1.0, ge=1, le=16)
    """eta for responses: a short round starts ceil(eta * R0) per prompt, and drops all but the first R0 that finish.

    RollPacker uses 1.25. Above 1, short responses win within a prompt, which changes what is learned."""


_PARTIAL_ROLLOUT_RULES: "tuple[Rule[PartialRolloutSettings], ...]" = (
    Rule(
        "groupFactor",
        "self.groupFactor <= double(self.maxPolicyVersions)",
        lambda partial: partial.group_factor <= partial.max_policy_versions,
        "groupFactor must not exceed maxPolicyVersions, or left-over groups cannot finish in time: lower it",
    ),
)


class PartialRolloutSettings(ApiModel, rules=_PARTIAL_ROLLOUT_RULES):
    """Settings of active partial rollout (APRIL, section 2.2)."""

    group_factor: float = Field(default=2.0, ge=1, le=16)
    """A round starts groupFactor * P0 groups and stops when P0 of them are served."""
    max_policy_versions: int = Field(default=5, ge=1, le=1_000)
    """Policy versions that one response may contain: a round waits for groups that would otherwise exceed it."""


class ReorderRolloutSettings(ApiModel):
    """Settings of reorder rollout (verl's recipe)."""

    max_postponements: int = Field(default=4, ge=1, le=1_000)
    """X: rounds that may postpone a draw; the next round is then long, and takes the draws that have waited longest."""
    group_factor: float = Field(default=2.0, ge=1, le=16)
    """Groups in a round, as a multiple of P0, if the engines hold as many. At most maxPostponements + 1 counts, because
    draws could not be accepted in time otherwise."""
    length_grouping: bool = False
    """Look as far ahead as `groupFactor` says, even if the engines hold fewer groups, and put draws of similar
    predicted length into one round."""


class AutoSettings(ApiModel):
    """Settings of strategy Auto, which begins with `tailBatching` and changes its factors between rounds. With
    trainers on GPUs of their own it also changes `handover` and `admission.frontierWidth`, where these are unset."""

    max_prompt_factor: float = Field(default=2.0, ge=1, le=16)
    """Largest `tailBatching.promptFactor` that it may choose. It never chooses a `responseFactor` above that of
    `tailBatching`: by default responses to a prompt do not race."""
    margin: float = Field(default=0.03, gt=0, lt=1)
    """Share of the time of a step that a change has to save, by the prediction."""


_ROLLOUT_RULES: "tuple[Rule[Rollout], ...]" = (
    Rule(
        "auto.maxPromptFactor",
        "self.strategy != 'Auto' || self.tailBatching.promptFactor <= self.auto.maxPromptFactor",
        lambda rollout: (
            rollout.strategy is not Strategy.AUTO
            or rollout.tail_batching.prompt_factor <= rollout.auto.max_prompt_factor
        ),
        "maxPromptFactor must not be below tailBatching.promptFactor, with which Auto begins: raise it",
    ),
)


class AdmissionSettings(ApiModel):
    """Which requests run at once. These fields combine with each other and with any strategy."""

    frontier_width: int | None = Field(default=None, ge=1, le=65_536)
    """F_w: groups in service at once per engine, in their order (RolloutPipe, section 3.3). Unset: all; with
    GroupPipeline: as many as the KV caches hold, and at least those of one update."""
    max_active_per_engine: int | None = Field(default=None, ge=1, le=65_536)
    """Most requests on one engine at once. Unset: all."""
    adaptive: bool = False
    """Adjust that number to the KV-cache use and the preemptions of each engine."""


class RepurposingSettings(ApiModel):
    """Pods that go from rollout to training for the rest of a round, with handover Streamed (RollPacker, 4.4)."""

    trigger: RepurposeTrigger = RepurposeTrigger.ADAPTIVE
    """Adaptive: when 20 % to 50 % of the requests have finished, the running requests fit the KV caches of the other
    half of the pods, and earlier rounds of the job suggest that the step will end sooner. Fixed: at `fraction`,
    whatever fits and whatever it costs. Neither happens while a gate of `admission` holds requests back. Never:
    trainers that have their own processors compute gradients during the round, all others after it."""
    fraction: float = Field(default=0.3, gt=0, lt=1)
    """Trigger Fixed: share of the step's prompts whose groups must be in the batch."""
    max_kv_peak: float = Field(default=0.9, gt=0, le=1)
    """Trigger Adaptive: highest projected peak use of the remaining KV caches, as a share."""


class EngineSettings(ApiModel):
    """The inference engines; each is one tensor-parallel group inside one pod."""

    backend: EngineBackend = EngineBackend.VLLM
    """VLLM, or Fake: a deterministic engine without a model, for tests of the other parts."""
    tensor_parallel_size: int = Field(default=1, ge=1, le=16)
    """GPUs per engine; must divide the GPUs of a pod."""
    parallelism: Parallelism = Parallelism.FIXED
    """Adaptive: engines regroup between rounds. More preemptions than usual, or four rounds that preempt every other
    request, double their size; four rounds without preemptions halve it, separately for each kind of round. The first
    size is `tensorParallelSize`, or the best one by the job's profile (`spec.profiling`)."""
    max_num_seqs: int = Field(default=256, ge=1, le=65_536)
    """Requests that an engine runs at once."""
    kv_cache: Quantity | None = None
    """Memory for the KV cache of an engine; unset: what `gpuMemoryUtilization` leaves."""
    gpu_memory_utilization: float = Field(default=0.5, gt=0, le=1)
    """Share of GPU memory that an engine may use."""
    dtype: EngineDtype = EngineDtype.AUTO
    """Type of weights and activations in the engine."""
    enforce_eager: bool = False
    """Skip compilation and CUDA graphs: faster start, slower steps."""
    sleep_level: int = Field(default=1, ge=0, le=2)
    """vLLM sleep level while the trainer holds the GPU; 0: stay awake. Has no effect on the CPU."""
    weight_transfer: WeightTransfer = WeightTransfer.AUTO
    """Direct: engines read the memory of the trainers on their GPUs (by CUDA IPC; on the CPU shared memory), or get the
    weights by broadcast (NCCL; on the CPU gloo). ObjectStore: copies pass through Ray's object store and the host.
    Auto: Direct on GPUs, otherwise ObjectStore."""
    extra_args: Freeform = Field(default_factory=dict)
    """Further vLLM engine arguments, by their Python names. Those that follow from other fields, or with which engines
    could not take new weights, are refused. Speculative decoding and chunked prefill need GPUs: on CPUs, vLLM samples
    wrong tokens with the one and dies with the other."""


class Rollout(ApiModel, rules=_ROLLOUT_RULES):
    """Round policy and engine."""

    on_policy: OnPolicy = OnPolicy.STRICT
    """Strict: every token of a batch was sampled by the weights that the step starts from."""
    strategy: Strategy = Strategy.TAIL_BATCHING
    """Preset of the round policy."""
    tail_batching: TailBatchingSettings = Field(default_factory=TailBatchingSettings)
    """Settings of strategy TailBatching, and those that Auto begins with."""
    partial_rollout: PartialRolloutSettings = Field(default_factory=PartialRolloutSettings)
    """Settings of strategy PartialRollout."""
    reorder_rollout: ReorderRolloutSettings = Field(default_factory=ReorderRolloutSettings)
    """Settings of strategy ReorderRollout."""
    auto: AutoSettings = Field(default_factory=AutoSettings)
    """Settings of strategy Auto."""
    admission: AdmissionSettings = Field(default_factory=AdmissionSettings)
    """Which requests run at once."""
    leftovers: Leftovers | None = None
    """Tokens of unfinished responses: KeepTokens continues them in a later round, with newer weights. Unset: KeepTokens
    for PartialRollout, DropTokens for the other strategies."""
    handover: Handover | None = None
    """Streamed: gradients of groups are computed while the round still runs, and one update follows at its end.
    Pipelined: while the round still runs, the trainer gets promptsPerUpdate groups at a time and makes an update with
    each. Unset: Pipelined for GroupPipeline, AfterRound for the other strategies."""
    repurposing: RepurposingSettings = Field(default_factory=RepurposingSettings)
    """Streamed: which pods train while others still sample."""
    max_tokens_per_dispatch: int = Field(default=131_072, ge=1, le=1_000_000_000)
    """Pipelined: most tokens per replica that the trainer gets at a time, in whole groups; a larger group goes
    alone."""
    max_log_prob_mismatch: float | None = Field(default=None, gt=0, le=1_000)
    """Largest mean of |log-probability of trainer - engine| per token that a step may have. With onPolicy Strict, a
    step above this limit is not trained on: the engines get the weights again and sample the round again, and the job
    fails if the mean is still above the limit. With Relaxed, an alarm is raised. Unset: 0.001 if engines and trainers
    compute in float32, 0.1 if one of them does not, no limit for engines of backend Fake."""
    on_finish: OnFinish = OnFinish.DRAIN
    """Drain: train on the deferred draws in one or more smaller long rounds; Leave: only report their number."""
    engine: EngineSettings = Field(default_factory=EngineSettings)
    """The inference engines."""

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
