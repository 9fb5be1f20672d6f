"""The matrices of experts fit the layers of vLLM, which are filled and read here as on a GPU; only GPUs compute."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config.lora import LoRAConfig
from vllm.lora.layers import FusedMoEWithLoRA
from vllm.lora.lora_model import LoRAModel
from vllm.lora.lora_weights import PackedLoRALayerWeights
from vllm.lora.peft_helper import PEFTHelper
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

from longshore.api.training import Lora
from longshore_runtime.backends.vllm_lora import _holds, lora_arguments
from tests.contract.trainers.tiny_models import MIXTURES, build

NUM_EXPERTS, HIDDEN, CHANNELS, RANK, ALPHA = 3, 32, 16, 4, 8
PROJECTIONS = ("gate_proj", "down_proj", "up_proj")


def layer_of(tp_rank: int, tp_size: int) -> FusedMoEWithLoRA:
    """A layer of vLLM without experts, whose kernels exist for GPUs only; its buffers are real."""
    layer: Any = FusedMoEWithLoRA.__new__(FusedMoEWithLoRA)
    torch.nn.Module.__init__(layer)
    layer.moe_config = SimpleNamespace(
        hidden_dim=HIDDEN,
        num_local_experts=NUM_EXPERTS,
        num_experts=NUM_EXPERTS,
        intermediate_size_per_partition=CHANNELS // tp_size,
        moe_parallel_config=SimpleNamespace(use_ep=False),
    )
    layer.base_layer, layer.device = torch.nn.Identity(), torch.device("cpu")
    layer.tp_rank, layer.tp_size, layer._w13_slices, layer.enable_moe_shared_loras = tp_rank, tp_size, 2, False
    config = LoRAConfig(max_lora_rank=8, max_loras=1, max_cpu_loras=1, lora_dtype=torch.float32)
    layer.create_lora_weights(1, config)
    return layer


def matrices() -> dict[str, torch.Tensor]:
    """Those of one layer, by the names that trainers publish."""
    torch.manual_seed(0)
    found = {}
    for expert in range(NUM_EXPERTS):
        for projection in PROJECTIONS:
            outputs, inputs = (HIDDEN, CHANNELS) if projection == "down_proj" else (CHANNELS, HIDDEN)
            name = f"base_model.model.model.layers.0.mlp.experts.{expert}.{projection}"
            found[f"{name}.lora_A.weight"] = torch.randn(RANK, inputs)
            found[f"{name}.lora_B.weight"] = torch.randn(outputs, RANK)
    return found


@pytest.mark.parametrize(("tp_rank", "tp_size"), [(0, 1), (1, 2)])
def test_bound_experts_are_recognised_and_others_are_not(tp_rank: int, tp_size: int) -> None:
    layer, named = layer_of(tp_rank, tp_size), matrices()
    helper = PEFTHelper(r=RANK, lora_alpha=ALPHA, target_modules=[])
    adapter = LoRAModel.from_lora_tensors(1, {name: one.clone() for name, one in named.items()}, helper, "cpu")
    mapping = RoutedExperts.build_expert_params_mapping(*PROJECTIONS, NUM_EXPERTS, routed_experts_prefix="")
    parts = [f"model.layers.0.mlp.{name.rstrip('.')}" for _, name, _, _ in mapping]
    packed = PackedLoRALayerWeights.pack_moe([adapter.loras[part] for part in parts], "experts").optimize()
    layer.set_lora(0, packed.lora_a, packed.lora_b)
    prefix, scale = "base_model.model.", ALPHA / RANK
    group: list[Any] = [
        (named[f"{prefix}{part}.lora_A.weight"], named[f"{prefix}{part}.lora_B.weight"] * scale) for part in parts
    ]
    assert _holds(layer, group)
    assert not _holds(layer, [None, *group[1:]])
    for place, (a, b) in enumerate(group):
        assert not _holds(layer, [*group[:place], (a, b + 1), *group[place + 1 :]])


def test_engines_make_room_for_experts_on_request_only(tmp_path: Path) -> None:
    model = build(tmp_path, MIXTURES[0])
    attention = ["k_proj", "o_proj", "q_proj", "v_proj"]
    without, adapted, some = (
        lora_arguments(lora, model)["lora_target_modules"]
        for lora in (Lora(), Lora(experts=True), Lora(target_modules=["q_proj"], experts=True))
    )
    assert {*attention} <= {*without}
    assert adapted == sorted([*without, "experts"])
    assert some == ["experts", "q_proj"]
