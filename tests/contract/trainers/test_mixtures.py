"""Mixtures of experts: engines and checkpoints get the tensors of the model's files, whatever transformers fuses."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.backends.world import World
from longshore_runtime.weights.slices import Weights
from tests.contract.trainers.ranks import kept_ranks
from tests.contract.trainers.replicas import OPTIONS, make_samples
from tests.contract.trainers.test_torch_sharding import HALVES, assert_same_step
from tests.contract.trainers.tiny_models import MIXTURES, Family, build

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

SAMPLES = make_samples(seed=0)


@pytest.fixture(scope="module", params=MIXTURES, ids=str)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of each kind."""
    family: Family = request.param
    return build(tmp_path_factory.mktemp(str(family)), family)


def weights(directory: Path) -> dict[str, torch.Tensor]:
    """All tensors of its files that belong to the model's own two layers."""
    found = {name: values for file in directory.glob("*.safetensors") for name, values in load_file(file).items()}
    return {name: values for name, values in found.items() if ".layers.2." not in name}


def tensors(arrays: Weights) -> dict[str, torch.Tensor]:
    """The same as tensors."""
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """The same names, and the same values bit by bit."""
    assert one.keys() == other.keys()
    assert all(torch.equal(values, other[name]) for name, values in one.items())


def test_weights_are_those_of_the_files_until_the_first_update(model: Path) -> None:
    published = tensors(dict(TorchTrainer(model, OPTIONS).weights()))
    assert_equal(published, weights(model))
    assert any(".experts.2." in name for name in published)


def test_log_probabilities_are_those_of_transformers(model: Path) -> None:
    trained = TorchTrainer(model, OPTIONS).log_probs(SAMPLES)
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    for index, sample in enumerate(SAMPLES):
        tokens = torch.tensor([[*sample.prompt_tokens, *sample.trajectory.tokens]])
        with torch.no_grad():
            logits = plain(tokens).logits[0, :-1] / OPTIONS.temperature
        expected = logits.log_softmax(-1).gather(-1, tokens[0, 1:, None])[len(sample.prompt_tokens) - 1 :, 0]
        torch.testing.assert_close(torch.tensor(trained[index]), expected, atol=1e-5, rtol=0)


def test_ranks_that_share_the_experts_make_the_same_step(model: Path) -> None:
    assert_same_step(model, HALVES)


def test_a_checkpoint_has_the_names_of_the_files_and_restores_every_bit(model: Path, tmp_path: Path) -> None:
    trainer = TorchTrainer(model, OPTIONS)
    trainer.accumulate(SAMPLES)
    trainer.update(100.0)
    trainer.save(tmp_path)
    trained = tensors(dict(trainer.weights()))
    assert_equal(weights(tmp_path), trained)
    before = weights(model)
    assert all(not torch.equal(values, before[name]) for name, values in trained.items() if ".experts." in name)
    assert_equal(tensors(restored(World(), model, tmp_path)), trained)


def restored(world: World, model: Path, checkpoint: Path) -> Weights:
    """The weights of a trainer that goes on from a checkpoint."""
    trainer = TorchTrainer(model, OPTIONS, world, None if world.size == 1 else HALVES)
    trainer.load(checkpoint)
    return dict(trainer.weights())


def test_a_checkpoint_is_restored_by_ranks_that_share_the_experts(model: Path, tmp_path: Path) -> None:
    trainer = TorchTrainer(model, OPTIONS)
    trainer.accumulate(SAMPLES)
    trainer.update(100.0)
    trainer.save(tmp_path)
    first, _ = kept_ranks(2).run(restored, model, tmp_path)
    assert_equal(tensors(first), tensors(dict(trainer.weights())))
