"""Map names: which Hugging Face tensors make up which Megatron parameter, on which pipeline stage."""

from collections.abc import Iterator
from dataclasses import dataclass

from longshore_runtime.backends.hf_mapping.architecture import Architecture
from longshore_runtime.backends.hf_mapping.layouts import (
    Cut,
    GateUp,
    QueryKeyValue,
    Replicated,
    ShardLayout,
    Vocabulary,
)

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class ParameterEntry:
    """One Megatron parameter."""

    megatron: str
    """Name of the parameter within its pipeline stage."""
    hf: tuple[str, ...]
    """Names of the Hugging Face tensors that make up the parameter."""
    layout: ShardLayout
    duplicate: bool = False
    """Whether this is the last stage's copy of a tied embedding, which is not saved: the first stage's is."""


def stage_layers(num_layers: int, stage: int, num_stages: int) -> range:
    """Return the Hugging Face numbers of a stage's layers."""
    per_stage = num_layers // num_stages
    return range(stage * per_stage, (stage + 1) * per_stage)


def stage_entries(architecture: Architecture, stage: int, num_stages: int) -> list[ParameterEntry]:
    """Return all parameters of a pipeline stage (counted from 0)."""
    vocabulary = Vocabulary(architecture.vocab_size)
    first, last = stage == 0, stage == num_stages - 1
    entries: list[ParameterEntry] = []
    if first:
        entries.append(ParameterEntry("embedding.word_embeddings.weight", (EMBEDDING,), vocabulary))
    for local, layer in enumerate(stage_layers(architecture.num_layers, stage, num_stages)):
        entries.extend(_layer_entries(architecture, f"decoder.layers.{local}.", f"model.layers.{layer}."))
    if last:
        entries.append(ParameterEntry("decoder.final_layernorm.weight", ("model.norm.weight",), Replicated()))
    if last and not architecture.tied:
        entries.append(ParameterEntry("output_layer.weight", (HEAD,), vocabulary))
    if last and not first and architecture.tied:
        entries.append(ParameterEntry("output_layer.weight", (EMBEDDING,), vocabulary, duplicate=True))
    return entries


def _layer_entries(architecture: Architecture, megatron: str, hf: str) -> Iterator[ParameterEntry]:
    replicated, rows = Replicated(), Cut(1)
    qkv = QueryKeyValue(architecture.num_query_groups, architecture.head_dim)
    attention, mlp = f"{hf}self_attn.", f"{hf}mlp."
    yield ParameterEntry(f"{megatron}input_layernorm.weight", (f"{hf}input_layernorm.weight",), replicated)
    for kind in ("weight", "bias") if architecture.qkv_bias else ("weight",):
        names = tuple(f"{attention}{part}_proj.{kind}" for part in "qkv")
        yield ParameterEntry(f"{megatron}self_attention.linear_qkv.{kind}", names, qkv)
    for part in "qk" if architecture.qk_norm else "":
        name = f"{megatron}self_attention.{part}_layernorm.weight"
        yield ParameterEntry(name, (f"{attention}{part}_norm.weight",), replicated)
    yield ParameterEntry(f"{megatron}self_attention.linear_proj.weight", (f"{attention}o_proj.weight",), rows)
    yield ParameterEntry(f"{megatron}pre_mlp_layernorm.weight", (f"{hf}post_attention_layernorm.weight",), replicated)
    yield ParameterEntry(
        f"{megatron}mlp.linear_fc1.weight", (f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight"), GateUp()
    )
    yield ParameterEntry(f"{megatron}mlp.linear_fc2.weight", (f"{mlp}down_proj.weight",), rows)
