"""Sequences that are computed one behind the other in a row, against each of them alone in transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    Lfm2Config,
    Mamba2Config,
    MistralConfig,
    OPTConfig,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from longshore_runtime.backends.causal_lm import CausalLM
from longshore_runtime.backends.pretrained import load_pretrained
from longshore_runtime.backends.trainer_protocol import Sample
from tests.contract.trainers.plans import double_precision
from tests.contract.trainers.replicas import make_samples

_SHAPE: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}
_WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3}
_LONG = {"sliding_window": 12}
"""A window that is longer than the sequences of a trial, and shorter than those of the samples."""
_EXPERTS = {"moe_intermediate_size": 32, "num_experts": 3, "num_experts_per_tok": 2}
PACKED = {
    "qwen3": Qwen3Config(**_SHAPE),
    "mistral, with a window in every layer": MistralConfig(**_SHAPE, sliding_window=3),
    "gemma3, with windows in some": Gemma3TextConfig(**_SHAPE, **_WINDOWS),
    "experts": Qwen3MoeConfig(**_SHAPE, **_EXPERTS),
    "gpt2, with positions that are learned": GPT2Config(
        vocab_size=128, n_embd=32, n_layer=2, n_head=4, n_positions=256
    ),
    "opt, which counts positions from 2": OPTConfig(
        vocab_size=128, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=2, word_embed_proj_dim=32
    ),
}
ROWS = {
    "lfm2, whose convolutions see what is before": Lfm2Config(**_SHAPE, layer_types=["conv", "full_attention"]),
    "gemma2, which bends scores": Gemma2Config(**_SHAPE, **_WINDOWS, attn_logit_softcapping=5.0),
    "gpt-oss, whose scores have sinks": GptOssConfig(**_SHAPE, **_WINDOWS, num_local_experts=2, num_experts_per_tok=1),
    "mamba2, which has no attention": Mamba2Config(
        vocab_size=128, hidden_size=32, num_hidden_layers=2, num_heads=8, head_dim=8, state_size=8, n_groups=1
    ),
    "qwen2 with experts, whose windows are in masks alone": Qwen2MoeConfig(
        **_SHAPE, **_EXPERTS, **_WINDOWS | _LONG, use_sliding_window=True
    ),
    "falcon, with alibi": FalconConfig(
        vocab_size=128, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, alibi=True
    ),
}
SAMPLES = make_samples()


def alone(module: Any, sample: Sample) -> torch.Tensor:
    """Log-probabilities of the response of one sample, by the attention that transformers would choose."""
    tokens = torch.tensor([[*sample.prompt_tokens, *sample.trajectory.tokens]])
    everywhere = torch.log_softmax(module(input_ids=tokens, use_cache=False).logits[0], dim=-1)
    places = torch.arange(len(sample.prompt_tokens), tokens.shape[1])
    return everywhere[places - 1, tokens[0, places]]


@pytest.mark.parametrize(
    ("config", "packs"),
    [(config, True) for config in PACKED.values()] + [(config, False) for config in ROWS.values()],
    ids=[*PACKED, *ROWS],
)
def test_each_sequence_of_a_micro_batch_is_computed_as_if_alone(config: Any, packs: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = CausalLM(tmp_path, torch.device("cpu"))
    lengths = [sample.num_tokens for sample in SAMPLES]
    assert model._packs == packs
    (together,) = model.micro_batches(lengths, sum(lengths)) if packs else [range(len(SAMPLES))]
    plain = load_pretrained(tmp_path, torch.float32).double().eval()
    plain.set_attn_implementation("eager")
    plain.set_experts_implementation("eager")
    samples = [SAMPLES[index] for index in together]
    with double_precision():
        found = model.double().response_tokens(samples, 1.0).log_probs
        wanted = torch.cat([alone(plain, sample) for sample in samples])
        # Attention without packing may compute its softmax in single precision.
        tolerance = 1e-9 if packs else 1e-4
        assert apart(found, wanted) < tolerance
        gradients = [
            dict(zip(names, torch.autograd.grad(values.sum(), parameters, allow_unused=True), strict=True))
            for values, names, parameters in ((found, *named(model.module)), (wanted, *named(plain)))
        ]
    found_all, wanted_all = (
        torch.cat([one.flatten() for one in each.values() if one is not None]) for each in gradients
    )
    assert apart(found_all, wanted_all) < tolerance


def apart(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Norm of the difference, relative to what is wanted."""
    return float(torch.linalg.vector_norm(found - wanted) / torch.linalg.vector_norm(wanted))


def named(module: torch.nn.Module) -> tuple[list[str], list[torch.Tensor]]:
    """Names and parameters of a model."""
    named = dict(module.named_parameters())
    return list(named), list(named.values())


def test_what_is_saved_says_nothing_of_packing(tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(PACKED["qwen3"]).save_pretrained(tmp_path)
    model = CausalLM(tmp_path, torch.device("cpu"))
    model.module.save_pretrained(tmp_path / "saved")
    assert "longshore" not in (tmp_path / "saved" / "config.json").read_text()
