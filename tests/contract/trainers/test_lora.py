"""LoRA: an adapter is PEFT's, trained exactly, and no part of the model changes beside it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from longshore.api.training import Lora, TrainerBackend, TrainerDtype
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.backends.world import World
from longshore_runtime.checkpoints.model_export import BaseModel, ModelExport
from longshore_runtime.checkpoints.store import CheckpointStore
from longshore_runtime.trainer.saved_by import sign
from longshore_runtime.weights.slices import Weights
from tests.contract.trainers.plans import (
    BATCHES,
    SOME_CLIPPED,
    apart,
    double_models,
    double_precision,
    sample_loss,
    token_log_probs,
)
from tests.contract.trainers.ranks import kept_ranks
from tests.contract.trainers.replicas import LORA, OPTIONS, make_samples, own_part, with_masks
from tests.contract.trainers.tiny_models import Family, build

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

WITH_LORA = replace(SOME_CLIPPED, lora=LORA)
HALVES = ParallelSizes(fsdp=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("qwen3"), Family("qwen3", tied=True))


def moved(trainer: TorchTrainer) -> TorchTrainer:
    """The trainer with other matrices, of which none is zero."""
    torch.manual_seed(7)
    with torch.no_grad():
        for _, parameter in trainer._model.stored.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, dtype=parameter.dtype))
    return trainer


def peft_model(model: Path, adapter: Path) -> Any:
    """The adapter in a directory, opened by PEFT itself in double precision."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return PeftModel.from_pretrained(base, str(adapter), is_trainable=True).double()


@pytest.mark.parametrize("double", [True, False], ids=["fp64", "fp32"])
def test_gradients_equal_those_of_peft(double: bool, model: Path, tmp_path: Path) -> None:
    with double_models(double):
        trainer = moved(TorchTrainer(model, WITH_LORA))
    trainer.begin_save(tmp_path)()
    trainer.load(tmp_path)  # The matrices of the file, which are in single precision.
    with double_precision(double):
        trainer.accumulate(BATCHES[0])
        trainer._accumulation.collect()
    stored = trainer._model.stored
    actual = {part: whole.numpy() for name, one in stored.parameters() for part, whole in stored.apart(name, one.grad)}
    policy = peft_model(model, tmp_path)
    initial = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).double()
    with double_precision():
        total = torch.stack([sample_loss(policy, initial, sample, WITH_LORA) for sample in BATCHES[0]]).sum()
        torch.autograd.backward(total)
    expected = {
        name.replace(".default", ""): one.grad.numpy() for name, one in policy.named_parameters() if one.requires_grad
    }
    assert apart(actual, expected) < (1e-10 if double else 2e-5)


def test_initial_matrices_are_those_of_peft(model: Path) -> None:
    """Names and shapes are equal, A has the same bounds, and B is zero; the reference then has no distance."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    theirs = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")).state_dict()
    trainer = TorchTrainer(model, WITH_LORA)
    ours = dict(trainer.weights())
    assert {name: matrix.shape for name, matrix in ours.items()} == {
        name.replace(".default", ""): tuple(matrix.shape) for name, matrix in theirs.items() if "lora_" in name
    }
    for name, matrix in ours.items():
        bound = 1 / np.sqrt(matrix.shape[1]) if "lora_A" in name else 0.0
        assert np.abs(matrix).max() <= bound
        assert "lora_B" in name or matrix.std() == pytest.approx(bound / np.sqrt(3), rel=0.2)
    assert trainer.accumulate(make_samples()).kl == 0.0


def trained(world: World, model: Path, sizes: ParallelSizes, naps: bool) -> tuple[Weights, float]:
    trainer = TorchTrainer(model, replace(OPTIONS, lora=LORA), world, sizes)
    for seed in (0, 1):
        for part in (make_samples(seed=seed)[:5], with_masks(make_samples(seed=seed))[5:]):
            trainer.accumulate(own_part(part, world, sizes))
            if naps:
                trainer.sleep()
        report = trainer.update(50.0)
    return dict(trainer.weights()), report.grad_norm


def test_ranks_with_shards_of_it_train_as_one_that_is_alone(model: Path) -> None:
    weights, norm = trained(World(), model, ParallelSizes(), naps=False)
    (sharded, sharded_norm), (none, _) = kept_ranks(2).run(trained, model, HALVES, True)
    assert not none
    assert sharded_norm == pytest.approx(norm, rel=1e-4)
    assert sharded.keys() == weights.keys()
    assert all(np.allclose(sharded[name], weights[name], rtol=1e-3, atol=1e-4) for name in weights)


def sharded_in_bfloat16(world: World, model: Path) -> tuple[set[torch.dtype], int]:
    """What a rank does where layers compute in bfloat16: its types of parameters, and its number of updates."""
    trainer = TorchTrainer(model, replace(OPTIONS, lora=LORA, dtype=TrainerDtype.BFLOAT16), world, HALVES)
    trainer.accumulate(make_samples()[world.rank :: 2])
    trainer.update(50.0)
    return {parameter.dtype for parameter in trainer._model.module.parameters()}, trainer.policy_version


def test_frozen_weights_in_bfloat16_are_sharded_beside_matrices_in_float32(model: Path) -> None:
    for types, version in kept_ranks(2).run(sharded_in_bfloat16, model):
        assert (types, version) == ({torch.bfloat16, torch.float32}, 1)


def test_merged_model_computes_as_the_adapter(model: Path, tmp_path: Path) -> None:
    trainer = moved(TorchTrainer(model, WITH_LORA))

    def save(directory: Path) -> Callable[[], None]:
        sign(directory, TrainerBackend.TORCH)
        return trainer.begin_save(directory)

    checkpoint = CheckpointStore(tmp_path / "checkpoints", keep=1).begin(1, {}, {}, save)()
    ModelExport(base=BaseModel(model, "the/base")).write(checkpoint, tmp_path / "model")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).double()
    adapted = peft_model(model, tmp_path / "adapter")
    assert (
        json.loads((tmp_path / "adapter" / "adapter_config.json").read_bytes())["base_model_name_or_path"] == "the/base"
    )
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).double()
    sample = make_samples()[0]
    with torch.no_grad():
        one, other, before = (token_log_probs(each, sample, 1.0) for each in (merged, adapted, base))
        ours = torch.from_numpy(trainer.log_probs([sample])[0])
    torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours, _scaled(adapted, sample), atol=1e-5, rtol=0, check_dtype=False)
    assert (other - before).abs().max() > 0.01, "the adapter matters"


def _scaled(model: Any, sample: Any) -> torch.Tensor:
    with torch.no_grad():
        return token_log_probs(model, sample, WITH_LORA.temperature)


def test_names_choose_layers_and_unknown_ones_are_refused(model: Path) -> None:
    def names(*targets: str) -> list[str]:
        return [name for name, _ in TorchTrainer(model, replace(OPTIONS, lora=Lora(target_modules=targets))).weights()]

    assert {name.split(".")[-3] for name in names("q_proj", "mlp.up_proj")} == {"q_proj", "up_proj"}
    for target in ("qproj", "lm_head", "embed_tokens"):
        with pytest.raises(ValueError, match=f"no linear layers called '{target}'.*choose from down_proj, gate_proj"):
            names("q_proj", target)


def test_frozen_weights_are_stored_once(model: Path) -> None:
    """The reference is the same model, and neither gradients nor moments belong to its weights."""
    trainer = TorchTrainer(model, WITH_LORA)
    trainer.accumulate(make_samples())
    trainer.update(50.0)
    assert trainer._reference is None
    frozen = [one for one in trainer._model.module.parameters() if not one.requires_grad]
    assert frozen
    assert all(one.grad is None and one not in trainer._optimizer.state for one in frozen)
