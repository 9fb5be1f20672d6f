"""How responses are sampled: the round policy and the inference engine."""

from enum import StrEnum

from pydantic import Field

from longshore.api.base import ApiModel, Freeform, Quantity


class OnPolicy(StrEnum):
    """Which weights may have sampled a token that is trained on."""

    STRICT = "Strict"
    RELAXED = "Relaxed"


class Strategy(StrEnum):
    """Preset of a round policy."""

    SYNCHRONOUS = "Synchronous"
    TAIL_BATCHING = "TailBatching"
    PARTIAL_ROLLOUT = "PartialRollout"


class OnFinish(StrEnum):
    """What happens to draws that still wait when the last step is done."""

    DRAIN = "Drain"
    LEAVE = "Leave"


class EngineBackend(StrEnum):
    """Inference engine."""

    VLLM = "VLLM"
    FAKE = "Fake"


class TailBatching(ApiModel):
    """Knobs of tail batching (RollPacker, section 3)."""

    prompt_factor: float = Field(default=1.25, ge=1, le=16)
    """eta for prompts: a short round starts ceil(eta * P0) of them."""
    response_factor: float = Field(default=1.25, ge=1, le=16)
    """eta for responses: a short round starts ceil(eta * R0) per prompt."""


class PartialRollout(ApiModel):
    """Knobs of active partial rollout (APRIL, section 3)."""

    group_factor: float = Field(default=2.0, ge=1, le=16)
    """A round starts groupFactor * P0 groups and stops when P0 of them are served."""


class Engine(ApiModel):
    """The inference engines; each is one tensor-parallel group inside one pod."""

    backend: EngineBackend = EngineBackend.VLLM
    """VLLM, or Fake: a deterministic engine without a model, for tests of everything around it."""
    tensor_parallel_size: int = Field(default=1, ge=1, le=16)
    """GPUs per engine; must divide the GPUs of a pod."""
    max_num_seqs: int = Field(default=256, ge=1, le=65_536)
    """Requests that an engine runs at once."""
    kv_cache: Quantity | None = None
    """Memory for the KV cache of an engine; unset: what `gpuMemoryUtilization` leaves."""
    gpu_memory_utilization: float = Field(default=0.5, gt=0, le=1)
    """Share of GPU memory that an engine may use."""
    dtype: str = Field(default="auto", pattern="^(auto|float32|float16|bfloat16)$")
    """Type of weights and activations in the engine."""
    enforce_eager: bool = False
    """Skip compilation and CUDA graphs: quicker start, slower steps."""
    sleep_level: int = Field(default=1, ge=0, le=2)
    """vLLM sleep level while the trainer holds the GPU; 0: stay awake. Without effect on the CPU."""
    extra_args: Freeform = Field(default_factory=dict)
    """Further vLLM engine arguments, by their Python names."""


class Rollout(ApiModel):
    """Round policy and engine."""

    on_policy: OnPolicy = OnPolicy.STRICT
    """Strict: every token of a batch was sampled by the weights that the step starts from."""
    strategy: Strategy = Strategy.TAIL_BATCHING
    """Preset of the round policy."""
    tail_batching: TailBatching = Field(default_factory=TailBatching)
    """Knobs of strategy TailBatching."""
    partial_rollout: PartialRollout = Field(default_factory=PartialRollout)
    """Knobs of strategy PartialRollout."""
    on_finish: OnFinish = OnFinish.DRAIN
    """Drain: deferred draws are trained in one more, smaller long round; Leave: their number is reported."""
    engine: Engine = Field(default_factory=Engine)
    """The inference engines."""
