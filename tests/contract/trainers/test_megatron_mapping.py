"""Hugging Face checkpoints <-> Megatron's fused, sharded and staged parameters."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config

from longshore_runtime.backends.hf_mapping.architecture import Architecture, read_architecture
from longshore_runtime.backends.hf_mapping.entries import stage_entries
from longshore_runtime.backends.hf_mapping.files import TensorFiles
from longshore_runtime.backends.hf_mapping.layouts import GateUp, QueryKeyValue, Vocabulary, padded_vocab_size
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.world import World
from tests.contract.trainers.ranks import kept_ranks
from tests.contract.trainers.replicas import OPTIONS
from tests.contract.trainers.tiny_models import FAMILIES, Family, build

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@st.composite
def architectures(draw: st.DrawFn) -> tuple[Architecture, int, int]:
    """A shape, and the tensor- and pipeline-parallel sizes that it splits into."""
    tensor, pipeline = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 3]))
    groups = tensor * draw(st.integers(1, 2))
    shape = Architecture(
        num_layers=pipeline * draw(st.integers(1, 2)),
        hidden_size=8,
        intermediate_size=tensor * draw(st.integers(1, 3)),
        num_heads=groups * draw(st.integers(1, 3)),
        num_query_groups=groups,
        head_dim=draw(st.sampled_from([2, 4])),
        vocab_size=draw(st.integers(5, 40)),
        max_positions=64,
        norm_epsilon=1e-6,
        tied=draw(st.booleans()),
        qkv_bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
    )
    return shape, tensor, pipeline


def random_model(shape: Architecture) -> dict[str, Tensor]:
    """Tensors by Hugging Face name, all values different."""
    queries, keys, hidden = shape.num_heads * shape.head_dim, shape.num_query_groups * shape.head_dim, shape.hidden_size
    sizes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not shape.tied:
        sizes["lm_head.weight"] = (shape.vocab_size, hidden)
    for layer in range(shape.num_layers):
        name = f"model.layers.{layer}."
        for part, width in (("q", queries), ("k", keys), ("v", keys)):
            sizes[f"{name}self_attn.{part}_proj.weight"] = (width, hidden)
            if shape.qkv_bias:
                sizes[f"{name}self_attn.{part}_proj.bias"] = (width,)
            if shape.qk_norm and part != "v":
                sizes[f"{name}self_attn.{part}_norm.weight"] = (shape.head_dim,)
        sizes[f"{name}self_attn.o_proj.weight"] = (hidden, queries)
        for part in ("gate", "up"):
            sizes[f"{name}mlp.{part}_proj.weight"] = (shape.intermediate_size, hidden)
        sizes[f"{name}mlp.down_proj.weight"] = (hidden, shape.intermediate_size)
        for part in ("input", "post_attention"):
            sizes[f"{name}{part}_layernorm.weight"] = (hidden,)
    count, tensors = 1, {}
    for name, size in sizes.items():
        number = torch.Size(size).numel()
        tensors[name] = torch.arange(count, count + number, dtype=torch.float64).reshape(size)
        count += number
    return tensors


@given(architectures())
def test_every_tensor_comes_back_bit_by_bit_from_exactly_one_stage(case: tuple[Architecture, int, int]) -> None:
    shape, tensor, pipeline = case
    model, found = random_model(shape), dict[str, Tensor]()
    for stage in range(pipeline):
        for entry in stage_entries(shape, stage, pipeline):
            shards = entry.layout.shards([model[name] for name in entry.hf], tensor)
            assert len(shards) == tensor
            assert len({shard.shape for shard in shards}) == 1, "all ranks hold equally much"
            for name, whole in zip(entry.hf, entry.layout.whole(shards), strict=True):
                assert torch.equal(whole, model[name])
                assert entry.duplicate == (name in found)
                found[name] = whole
    assert found.keys() == model.keys()


@given(architectures())
def test_pieces_are_the_equal_parts_of_tensors_in_the_order_of_the_ranks(case: tuple[Architecture, int, int]) -> None:
    shape, tensor, _ = case
    model = random_model(shape)
    for entry in stage_entries(shape, 0, 1):
        shards = entry.layout.shards([model[name] for name in entry.hf], tensor)
        of_ranks = [entry.layout.pieces(shard, tensor) for shard in shards]
        if isinstance(entry.layout, Vocabulary):
            assert of_ranks == [None] * tensor
            continue
        for name, *pieces in zip(entry.hf, *filter(None, of_ranks), strict=True):
            (cut,) = {cut for _, cut in pieces}
            whole = pieces[0][0] if cut is None else torch.cat([piece for piece, _ in pieces], cut)
            assert torch.equal(whole, model[name])
            assert len({piece.shape for piece, _ in pieces}) == 1


def test_queries_keys_and_values_are_interleaved_by_group() -> None:
    queries, keys, values = torch.arange(8), torch.arange(10, 14), torch.arange(20, 24)
    fused = torch.cat(QueryKeyValue(num_query_groups=2, head_dim=2).shards([queries, keys, values], 1))
    assert fused.tolist() == [0, 1, 2, 3, 10, 11, 20, 21, 4, 5, 6, 7, 12, 13, 22, 23]


def test_each_rank_has_its_piece_of_the_gate_above_its_piece_of_the_up_projection() -> None:
    first, second = GateUp().shards([torch.arange(4), torch.arange(10, 14)], 2)
    assert (first.tolist(), second.tolist()) == ([0, 1, 10, 11], [2, 3, 12, 13])


def test_a_vocabulary_that_does_not_divide_is_padded_with_zeros() -> None:
    assert padded_vocab_size(5, 2) == 6
    _, second = Vocabulary(5).shards([torch.ones(5, 2)], 2)
    assert second.tolist() == [[1, 1], [1, 1], [0, 0]]


def weights_of(directory: Path) -> dict[str, torch.Tensor]:
    files = TensorFiles(directory)
    return {name: files.read(name) for name in files.names}


def save(world: World, model: Path, sizes: ParallelSizes, target: Path) -> None:
    from longshore_runtime.backends.megatron.trainer import MegatronTrainer

    MegatronTrainer(model, OPTIONS, world, sizes).begin_save(target)()


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_model_that_was_loaded_is_saved_bit_by_bit_and_opens_in_transformers(family: Family, tmp_path: Path) -> None:
    source, target = build(tmp_path / "source", family), tmp_path / "target"
    kept_ranks(4).run(save, source, ParallelSizes(tensor=2, pipeline=2), target)
    before, after = (weights_of(place) for place in (source, target))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    opened = AutoModelForCausalLM.from_pretrained(target)
    assert opened.dtype is torch.float32
    assert all(torch.equal(before[name], value) for name, value in opened.named_parameters())


def architecture() -> Architecture:
    return Architecture(4, 32, 48, 8, 4, 8, 131, 256, 1e-6, tied=False, qkv_bias=False, qk_norm=True)


@pytest.mark.parametrize(
    ("sizes", "change", "message"),
    [
        (ParallelSizes(tensor=3), {}, "trainer.tensorParallelSize: 3 does not divide the model's 8 attention heads"),
        (ParallelSizes(tensor=8), {}, "trainer.tensorParallelSize: 8 does not divide the model's 4 key-value heads"),
        (
            ParallelSizes(tensor=4),
            {"intermediate_size": 50},
            "trainer.tensorParallelSize: 4 does not divide the model's 50 MLP channels",
        ),
        (ParallelSizes(pipeline=3), {}, "trainer.pipelineParallelSize: 3 does not divide the model's 4 layers"),
    ],
)
def test_sizes_that_do_not_divide_the_model_are_refused_by_field(
    sizes: ParallelSizes, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        sizes.check_model(replace(architecture(), **change))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MistralConfig(), "'mistral' cannot be trained by Megatron"),
        (Qwen2Config(use_sliding_window=True), "sliding-window attention"),
        (LlamaConfig(attention_bias=True), "attention_bias"),
        (LlamaConfig(mlp_bias=True), "mlp_bias"),
        (LlamaConfig(hidden_act="gelu"), "activation 'gelu'"),
        (
            LlamaConfig(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
            "rope_type 'dynamic'",
        ),
    ],
)
def test_a_model_without_a_mapping_is_refused_with_the_way_out(config: SimpleNamespace, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        read_architecture(config)
    assert "trainer.backend to Torch" in str(error.value)


def test_the_shape_of_a_model_is_read_from_its_configuration(tmp_path: Path) -> None:
    shape = read_architecture(AutoConfig.from_pretrained(build(tmp_path, Family("qwen3", tied=False))))
    assert shape == replace(architecture(), num_layers=2)
