"""Read a model's shape from its Hugging Face configuration, and refuse models that cannot be mapped."""

from dataclasses import dataclass
from typing import Any

SUPPORTED_TYPES = ("llama", "qwen2", "qwen3")

_ROPE_TYPES = ("default", "linear", "llama3")
"""Rotary frequencies that depend on nothing but the configuration."""


@dataclass(frozen=True)
class Architecture:
    """Shape of a decoder of the Llama family: RMSNorm, rotary positions, grouped queries, gated SiLU."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_query_groups: int
    """Number of key-value heads."""
    head_dim: int
    vocab_size: int
    max_positions: int
    norm_epsilon: float
    tied: bool
    """Whether the output layer is the embedding."""
    qkv_bias: bool
    qk_norm: bool
    """Whether queries and keys are normalised per head."""


def read_architecture(config: Any) -> Architecture:
    """Return the shape of a model; raises ValueError, naming the reason, for a model without a mapping."""
    kind = config.model_type
    if kind not in SUPPORTED_TYPES:
        raise ValueError(
            f"models of type {kind!r} cannot be trained by Megatron (it trains {', '.join(SUPPORTED_TYPES)}): "
            "set trainer.backend to Torch"
        )
    for problem, present in {
        "sliding-window attention": getattr(config, "use_sliding_window", False),
        "attention_bias": getattr(config, "attention_bias", False),
        "mlp_bias": getattr(config, "mlp_bias", False),
        f"activation {config.hidden_act!r}": config.hidden_act != "silu",
        f"rope_type {_rope_type(config)!r}": _rope_type(config) not in _ROPE_TYPES,
    }.items():
        if present:
            raise ValueError(
                f"a {kind} model with {problem} cannot be trained by Megatron: set trainer.backend to Torch"
            )
    return Architecture(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_query_groups=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        vocab_size=config.vocab_size,
        max_positions=config.max_position_embeddings,
        norm_epsilon=config.rms_norm_eps,
        tied=config.tie_word_embeddings,
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
    )


def _rope_type(config: Any) -> str:
    return str((config.rope_parameters or {}).get("rope_type", "default"))
