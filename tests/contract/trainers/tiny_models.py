"""Random models: of every family that Megatron trains, as small as they can be cut four ways, Gemma, and experts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

_CLASSES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "gemma": (GemmaConfig, GemmaForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
    "glm4_moe": (Glm4MoeConfig, Glm4MoeForCausalLM),
}
_SHAPE: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_EXPERTS = {"head_dim": 8, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
_SPECIAL: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 8},
    "llama": {"rope_parameters": _LLAMA3_ROPE},
    "qwen3_moe": _EXPERTS | {"num_experts": 3},
    "mixtral": _EXPERTS | {"num_local_experts": 3},
    "glm4_moe": _EXPERTS
    | {
        "n_routed_experts": 3,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "pad_token_id": 0,
        "num_nextn_predict_layers": 1,
    },
}


@dataclass(frozen=True)
class Family:
    """A model type, with or without tied embeddings."""

    kind: str
    tied: bool

    def __str__(self) -> str:
        return f"{self.kind}-{'tied' if self.tied else 'untied'}"


FAMILIES = [Family(kind, tied) for kind in ("llama", "qwen2", "qwen3") for tied in (False, True)]
"""What Megatron trains."""
GEMMA = [Family(kind, tied=True) for kind in ("gemma", "gemma3")]
"""Embeddings that are scaled, and norms that add one to their weights. Only the torch trainer trains them. It refuses
Gemma 2, whose logits are capped."""
MIXTURES = [Family(kind, tied=False) for kind in ("qwen3_moe", "mixtral", "glm4_moe")]
"""Mixtures of experts, which transformers fuses; Mixtral's have other names, too, and GLM's routers have a bias."""


def build(directory: Path, family: Family, **changes: Any) -> Path:
    """Write one; no parameter keeps a value that a wrong mapping would not change."""
    config_class, model_class = _CLASSES[family.kind]
    special = _SPECIAL.get(family.kind, {})
    config = config_class(**_SHAPE | special | {"tie_word_embeddings": family.tied} | changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = model_class(config)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.1)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                torch.nn.init.normal_(buffer, std=0.1)
    model.save_pretrained(directory)
    if family.kind == "glm4_moe":
        _add_prediction_of_further_tokens(directory, config)
    return directory


def _add_prediction_of_further_tokens(directory: Path, config: Any) -> None:
    """A layer beyond the last, as in real checkpoints; nobody trains it, and engines that do not speculate skip it."""
    tensors = load_file(directory / "model.safetensors")
    shape = (config.hidden_size, 2 * config.hidden_size)
    tensors[f"model.layers.{config.num_hidden_layers}.eh_proj.weight"] = torch.ones(shape)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
