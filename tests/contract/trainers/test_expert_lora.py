"""LoRA of routed experts: matrices are those of PEFT, trained exactly, and merged into the experts of the files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from longshore.api.training import Lora
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.backends.world import World
from longshore_runtime.checkpoints.merged_weights import merge
from longshore_runtime.weights.slices import Weights
from tests.contract.trainers.plans import BATCHES, SOME_CLIPPED, double_models, double_precision, sample_loss
from tests.contract.trainers.ranks import kept_ranks
from tests.contract.trainers.replicas import OPTIONS, make_samples, own_part
from tests.contract.trainers.test_lora import moved, peft_model
from tests.contract.trainers.test_torch_sharding import HALVES
from tests.contract.trainers.tiny_models import MIXTURES, Family, build

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

RANK = 4
EXPERTS = Lora(rank=RANK, alpha=8, experts=True)
WITH_EXPERTS = replace(SOME_CLIPPED, lora=EXPERTS)
PEFT_READS = [family for family in MIXTURES if family.kind != "glm4_moe"]


def fused(adapted: Any) -> dict[str, Tensor]:
    """The gradients of PEFT, whose matrices of gate and up are fused as those of the files are not."""
    found = {}
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad and ".experts." in name:
            layer = name.replace(".default.weight", "").replace("base_model.model.", "")
            layer = layer.replace("experts.base_layer.", "experts.gate_up_proj.")
            found[layer.replace("experts.lora", "experts.down_proj.lora")] = parameter.grad
    return found


@pytest.mark.parametrize("family", PEFT_READS, ids=str)
def test_gradients_of_experts_equal_those_of_peft(family: Family, tmp_path: Path) -> None:
    model = build(tmp_path / "model", family)
    with double_models():
        trainer = moved(TorchTrainer(model, WITH_EXPERTS))
    trainer.begin_save(tmp_path / "adapter")()
    trainer.load(tmp_path / "adapter")  # The matrices of the file, which are in single precision.
    with double_precision():
        trainer.accumulate(BATCHES[0])
        trainer._accumulation.collect()
    policy = peft_model(model, tmp_path / "adapter")
    initial = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).double()
    for one in (policy, initial):
        one.set_experts_implementation("eager")
    with double_precision():
        torch.autograd.backward(
            torch.stack([sample_loss(policy, initial, sample, WITH_EXPERTS) for sample in BATCHES[0]]).sum()
        )
    theirs = fused(policy)
    ours = {name: one for name, one in trainer._model.stored.parameters() if ".experts." in name}
    assert len(ours) == 2 * 2 * 3  # Layers, matrices, and projections.
    for name, parameter in ours.items():
        path, number, matrix = name.replace(".lora.", ".", 1).rsplit(".", 2)
        expected = block(theirs[f"{path}.{matrix}"], matrix, int(number), parameter.shape)
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-9, atol=1e-12)
        assert expected.abs().max() > 0


def block(gradient: Tensor, matrix: str, number: int, shape: torch.Size) -> Tensor:
    """The part of a fused matrix of PEFT that belongs to one projection: [experts, rows, columns]."""
    if matrix == "lora_A":  # [experts * ranks of all projections, inputs]
        return gradient.view(shape[0], -1, shape[2])[:, number * RANK : (number + 1) * RANK]
    columns = gradient.view(len(gradient), -1, shape[0])  # [outputs, ranks of all projections, experts]
    rows = slice(number * shape[1], (number + 1) * shape[1])
    return columns[rows, number * RANK : (number + 1) * RANK].permute(2, 0, 1)


@pytest.mark.parametrize("family", MIXTURES, ids=str)
def test_merged_experts_compute_as_the_adapter(family: Family, tmp_path: Path) -> None:
    model = build(tmp_path / "model", family)
    trainer = moved(TorchTrainer(model, WITH_EXPERTS))
    trainer.begin_save(tmp_path / "adapter")()
    samples = make_samples(seed=0)
    adapted = trainer.log_probs(samples)
    assert trainer._model.adapter is not None
    with trainer._model.adapter.off():
        base = trainer.log_probs(samples)
    merge(model, tmp_path / "adapter")
    merged = TorchTrainer(model, OPTIONS).log_probs(samples)
    for index in range(len(samples)):
        torch.testing.assert_close(torch.tensor(merged[index]), torch.tensor(adapted[index]), atol=2e-5, rtol=0)
    assert abs(base[0] - adapted[0]).max() > 0.01, "the adapter matters"


def trained(world: World, model: Path, sizes: ParallelSizes) -> Weights:
    trainer = TorchTrainer(model, replace(OPTIONS, lora=EXPERTS), world, sizes)
    for seed in (0, 1):
        trainer.accumulate(own_part(make_samples(seed=seed), world, sizes))
        trainer.update(50.0)
    return dict(trainer.weights())


def test_ranks_that_share_experts_train_as_one_that_is_alone(tmp_path: Path) -> None:
    model = build(tmp_path, MIXTURES[0])
    alone = trained(World(), model, ParallelSizes())
    sharded, _ = kept_ranks(2).run(trained, model, HALVES)
    assert sharded.keys() == alone.keys()
    assert "base_model.model.model.layers.1.mlp.experts.2.up_proj.lora_B.weight" in alone
    for name, values in alone.items():
        torch.testing.assert_close(torch.tensor(sharded[name]), torch.tensor(values), rtol=1e-3, atol=1e-4)


def test_experts_of_a_dense_model_are_refused(tmp_path: Path) -> None:
    model = build(tmp_path, Family("qwen3", tied=True))
    with pytest.raises(ValueError, match=r"trainer\.lora\.experts: the model has no routed experts"):
        TorchTrainer(model, WITH_EXPERTS)
