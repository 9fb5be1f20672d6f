"""Settings that determine an engine."""

from dataclasses import dataclass, replace

from longshore.api.quantity import parse_bytes
from longshore.api.rollout import EngineSettings
from longshore.api.training import Lora


class EngineStartError(Exception):
    """Raised when the engine cannot start; the message is one sentence that names the field."""


@dataclass(frozen=True)
class EnginePart:
    """Part of an engine in one of its pods; the first one steps the engine, and the others follow it."""

    rank: int = 0
    num_pods: int = 1
    host: str = ""
    port: int = 0
    """Address where the processes of all parts meet, in the first pod."""


@dataclass(frozen=True)
class EngineSpec:
    """Everything that determines an engine, except where its model is mounted."""

    options: EngineSettings
    max_context_tokens: int
    """Longest prompt and response together."""
    seed: int = 0
    accelerator: bool = False
    """Whether GPUs are assigned to the engine; otherwise it runs on the CPU."""
    stop_tokens: tuple[int, ...] = ()
    """Tokens that end a response besides those of the model."""
    lora: Lora | None = None
    """Adapter whose weights are published; None: those of the whole model are."""
    returns_experts: bool = False
    """Whether responses come with the experts that each of their tokens passed through."""
    tokenizer: str | None = None
    """Directory, relative to the storage, of the tokenizer that decodes finished responses; None: they have no text."""

    part: EnginePart = EnginePart()
    """Part that lies in this pod."""

    def without_compiler(self) -> "EngineSpec":
        """Return the spec for a machine without a C++ compiler, with which vLLM compiles models on the CPU only."""
        if self.accelerator or self.options.enforce_eager:
            return self
        return replace(self, options=self.options.model_copy(update={"enforce_eager": True}))

    def regrouped(self, tp_size: int) -> "EngineSpec":
        """Return the spec of engines of another tensor-parallel size; each GPU holds as much KV cache as before."""
        options: dict[str, object] = {"tensor_parallel_size": tp_size}
        if self.options.kv_cache is not None:
            options["kv_cache"] = parse_bytes(self.options.kv_cache) * tp_size // self.options.tensor_parallel_size
        return replace(self, options=self.options.model_copy(update=options))
