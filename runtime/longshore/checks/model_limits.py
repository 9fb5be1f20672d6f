"""What a model cannot do, from its `config.json`: context, heads on the CPU, tensor-parallel sizes."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from longshore.api.rollout import EngineBackend, EngineSettings
from longshore.api.shapes import is_possible
from longshore.api.training import TrainerSettings

CPU_HEAD_SIZES: Final = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes for which vLLM 0.32 has attention kernels on the CPU (`CPUAttentionBackend.get_supported_head_sizes`)."""

_LENGTHS: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
_SCALED_ALREADY: Final = frozenset(
    {"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "default", "mrope"}
)
"""Kinds of RoPE scaling that `max_position_embeddings` includes."""
_VARYING: Final = {"dynamic": "max_position_embeddings"} | dict.fromkeys(
    ("su", "longrope"), "original_max_position_embeddings"
)
"""Kinds of RoPE whose frequencies change beyond a length: transformers looks at the longest sequence of a batch, and
vLLM at the longest context that an engine may have."""
_NUM_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_EXPERTS_PER_TOKEN: Final = ("num_experts_per_tok", "moe_k")
_BYTE_EXPERTS: Final = 256
"""Experts whose numbers fit a byte."""
_DIVIDED: Final = (
    "num_attention_heads", "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size",
)  # fmt: skip
"""What vLLM cuts into equal parts. It pads the vocabulary, and repeats key-value heads where they are too few."""


def limit_mistakes(
    config: Mapping[str, Any],
    engine: EngineSettings,
    max_context_tokens: int,
    *,
    has_accelerator: bool,
    field: str = "model.path",
) -> list[str]:
    """Return what a job asks of a model that it cannot do; nothing where the configuration is silent about it.

    `field`: where the spec names the model.
    """
    return [
        *_context_mistakes(config, max_context_tokens),
        *(_head_mistakes(config, field) if engine.backend is EngineBackend.VLLM and not has_accelerator else ()),
        *_split_mistakes(config, engine),
        *_quantization_mistakes(config, field),
    ]


def expert_mistakes(config: Mapping[str, Any], trainer: TrainerSettings) -> Iterator[str]:
    """Yield what a job asks of experts that the model does not have."""
    number = num_experts(config)
    for field, is_asked in (("routerReplay", trainer.router_replay), ("expertParallel", trainer.expert_parallel)):
        if config and is_asked and not number:
            yield f"trainer.{field}: the model has no experts (config.json names no number of them); remove it"
    if trainer.expert_parallel and number % trainer.fsdp_size:
        yield (
            f"trainer.fsdpSize: {trainer.fsdp_size} does not divide the model's {number} experts, which expertParallel "
            "spreads; choose a size that does, or remove expertParallel"
        )


def num_experts(config: Mapping[str, Any]) -> int:
    """Return the number of experts of a layer of a mixture; 0: there are none."""
    text = language_part(config)
    return next((text[name] for name in _NUM_EXPERTS if _is_count(text.get(name))), 0)


def experts_per_token(config: Mapping[str, Any]) -> int:
    """Return the number of experts that a token passes through in a layer; 0: there are none."""
    text = language_part(config)
    return next((text[name] for name in _EXPERTS_PER_TOKEN if _is_count(text.get(name))), 0)


def routing_bytes(config: Mapping[str, Any]) -> int:
    """Return the size of the numbers of all experts that a token passes through; 0: there are none."""
    number_bytes = 1 if num_experts(config) <= _BYTE_EXPERTS else 2
    return (language_part(config).get("num_hidden_layers") or 0) * experts_per_token(config) * number_bytes


def language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of the configuration that describes the language model, where a model has several."""
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def vocab_size(config: Mapping[str, Any]) -> int | None:
    """Return tokens that the model has embeddings for; None: unknown."""
    size = language_part(config).get("vocab_size")
    return size if _is_count(size) else None


def context_tokens(config: Mapping[str, Any]) -> int | None:
    """Return the longest context of a model; None: unknown."""
    text = language_part(config)
    lengths = [text[name] for name in _LENGTHS if _is_count(text.get(name))]
    if _is_count(text.get("model_max_length")):
        lengths = [text["model_max_length"]]
    return int(min(lengths) * _scaling(text)) if lengths else None


def splits(config: Mapping[str, Any], tp_size: int) -> bool:
    """Return whether vLLM can divide a model among this many GPUs."""
    text = language_part(config)
    kv_heads = text.get("num_key_value_heads") or text.get("num_attention_heads") or tp_size
    is_divided = all((text.get(name) or 0) % tp_size == 0 for name in _DIVIDED)
    return is_divided and (kv_heads % tp_size == 0 or tp_size % kv_heads == 0)


def possible_tp_sizes(config: Mapping[str, Any], gpus_per_pod: int, num_pods: int, configured: int) -> tuple[int, ...]:
    """Return sizes that engines can have, in rising order: those that fill the pods and divide the model as vLLM does.

    Powers of two up to a pod or to the configured size, and that size.
    """
    if gpus_per_pod == 0:
        return (configured,)
    sizes = {1 << power for power in range(max(gpus_per_pod, configured).bit_length())} | {configured}
    return tuple(sorted(size for size in sizes if is_possible(gpus_per_pod, num_pods, size) and splits(config, size)))


def _quantization_mistakes(config: Mapping[str, Any], field: str) -> Iterator[str]:
    """Yield a mistake if weights are quantised.

    They do not follow a gradient, and engines cannot replace them by plain ones.
    """
    quantization = config.get("quantization_config") or language_part(config).get("quantization_config")
    if quantization:
        method = str(quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else "unknown")
        yield (
            f"{field}: the weights are quantised (quant_method {method[:40]!r}), which cannot be trained; give the "
            "checkpoint that they were made from"
        )


def _context_mistakes(config: Mapping[str, Any], max_context_tokens: int) -> Iterator[str]:
    limit = context_tokens(config)
    if limit is not None and max_context_tokens > limit:
        yield f"model.maxContextTokens: {max_context_tokens} exceeds the {limit} tokens of the model; lower it"


def position_mistakes(config: Mapping[str, Any], max_context_tokens: int) -> Iterator[str]:
    """Yield a sentence if engines and trainers would disagree about the positions of long contexts."""
    text = language_part(config)
    rope = _rope(text)
    kind = _rope_kind(rope)
    name = _VARYING.get(kind, "")
    limit = rope.get(name, text.get(name))
    if "alpha" not in rope and _is_count(limit) and max_context_tokens > limit:
        yield (
            f"model.maxContextTokens: {max_context_tokens} exceeds {limit} tokens, beyond which engines and trainers "
            f"compute other positions with {kind!r} RoPE; lower it to {limit}"
        )


def _head_mistakes(config: Mapping[str, Any], field: str) -> Iterator[str]:
    text = language_part(config)
    num_heads, hidden_size = text.get("num_attention_heads"), text.get("hidden_size")
    if text.get("kv_lora_rank"):
        return  # Multi-head latent attention has kernels of its own.
    size = text.get("head_dim")
    if isinstance(num_heads, int) and isinstance(hidden_size, int) and num_heads > 0 and not _is_count(size):
        size = hidden_size // num_heads
    if _is_count(size) and size not in CPU_HEAD_SIZES:
        yield (
            f"{field}: the attention heads have size {size}, which vLLM does not support on the CPU (it does "
            f"{', '.join(map(str, CPU_HEAD_SIZES))}); choose another model, or run it on GPUs"
        )


def _split_mistakes(config: Mapping[str, Any], engine: EngineSettings) -> Iterator[str]:
    size = engine.tensor_parallel_size
    if engine.backend is EngineBackend.VLLM and size > 1 and not splits(config, size):
        yield (
            f"rollout.engine.tensorParallelSize: the model does not split into {size} parts: it must divide the "
            "attention heads and the intermediate size; choose a smaller power of two"
        )


def _scaling(text: Mapping[str, Any]) -> float:
    """Return the factor by which RoPE stretches `max_position_embeddings`, as vLLM counts it."""
    rope = _rope(text)
    if "gemma3" in str(text.get("model_type")):
        return 1.0
    factor = rope.get("factor")
    return float(factor) if _rope_kind(rope) not in _SCALED_ALREADY and isinstance(factor, int | float) else 1.0


def _rope(text: Mapping[str, Any]) -> Mapping[str, Any]:
    rope = text.get("rope_scaling") or text.get("rope_parameters")
    return rope if isinstance(rope, dict) else {}


def _rope_kind(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type", rope.get("type", "default")))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
