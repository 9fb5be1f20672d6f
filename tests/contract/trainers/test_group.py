"""Replicas of several ranks behind one handle: as Ray actors they train what one process alone would."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ray
from transformers import MistralConfig

from longshore.api import contract
from longshore.api.names import Component
from longshore.api.training import TrainerBackend
from longshore_runtime.backends.megatron.sizes import ParallelSizes
from longshore_runtime.backends.tiny_model import build_tiny_model
from longshore_runtime.backends.trainer_spec import TrainerSpec
from longshore_runtime.backends.trainers import create_trainer
from longshore_runtime.backends.world import World
from longshore_runtime.cluster.placement import node_labels
from longshore_runtime.errors import TrainerLost, UserError
from longshore_runtime.places import Place
from longshore_runtime.trainer.group import TrainerGroup
from longshore_runtime.types import Weights
from tests.contract.trainers.replicas import OPTIONS, Kind, assert_same_weights, make_samples, step, with_masks

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

BATCHES = [with_masks(make_samples(seed=seed)) for seed in range(2)]
TWO_BY_TWO = [Place(0, ())] * 4
SIZES = ParallelSizes(tensor=2)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A job's storage with a tiny model in it, and Ray, whose only node is worker 0."""
    root = tmp_path_factory.mktemp("storage")
    build_tiny_model(root / "model", seed=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(contract.ENV_POD_IP, "127.0.0.1")
        patch.setenv(contract.ENV_STORAGE, str(root))
        labels = node_labels(Component.WORKER, 0)
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, labels=labels)
        try:
            yield root
        finally:
            ray.shutdown()


@pytest.mark.parametrize("backend", [TrainerBackend.FAKE, TrainerBackend.MEGATRON])
def test_two_replicas_of_two_ranks_are_one_trainer(backend: TrainerBackend, storage: Path) -> None:
    """Updates, weights and checkpoints; a lost rank; all in one story, since starting four ranks takes seconds."""
    trainers = TrainerGroup(TWO_BY_TWO, TrainerSpec(backend, OPTIONS, SIZES), "model", "output")
    kind = Kind(backend.lower(), storage / "model")
    alone = kind.start()
    before = alone.weights()

    for version, batch in enumerate(BATCHES, start=1):
        update = trainers.begin()
        trainers.add(update, batch[:5])
        trainers.add(update, batch[5:])
        trainers.end(update)
        trained, expected = trainers.finish(update), step(alone, [batch])
        assert trained.update.policy_version == version
        assert trained.update.grad_norm == pytest.approx(expected.report.grad_norm, rel=1e-4)
        assert vars(trained.sums) == pytest.approx(vars(expected.sums), rel=1e-3, abs=1e-6)
        assert_same_weights(kind, before, expected.weights, published(trainers))

    saved = published(trainers)
    directory = f"checkpoint-{backend}"
    (storage / directory).mkdir()
    trainers.save(directory)
    trainers.sleep()
    trainers.wake()
    trainers.train(BATCHES[0])
    assert any(not np.array_equal(saved[name], values) for name, values in published(trainers).items())
    trainers.load(directory)
    restored = published(trainers)
    assert all(np.array_equal(saved[name], restored[name]) for name in saved), "bit by bit"

    ray.kill(trainers._actors[1])
    with pytest.raises(TrainerLost):
        trainers.train(BATCHES[0])
    trainers.stop()


def published(trainers: TrainerGroup) -> Weights:
    """What engines would be given."""
    weights: Weights = ray.get(trainers.weights(0).reference)
    return weights


def test_a_checkpoint_of_another_backend_is_refused(storage: Path) -> None:
    (storage / "fake").mkdir()
    fake = TrainerGroup(TWO_BY_TWO[:1], TrainerSpec(TrainerBackend.FAKE, OPTIONS), "model", "output")
    fake.save("fake")
    fake.stop()
    torch = TrainerGroup(TWO_BY_TWO[:1], TrainerSpec(TrainerBackend.TORCH, OPTIONS), "model", "output")
    with pytest.raises(UserError, match=r"^trainer\.backend: the newest checkpoint was saved by Fake"):
        torch.load("fake")
    torch.stop()


def test_a_size_that_does_not_suit_the_model_is_told_by_its_field(storage: Path) -> None:
    spec = TrainerSpec(TrainerBackend.MEGATRON, OPTIONS, ParallelSizes(tensor=4))
    with pytest.raises(UserError, match=r"^trainer\.tensorParallelSize: 4 does not divide the model's 2 key-value"):
        TrainerGroup(TWO_BY_TWO[:1], spec, "model", "output")


def test_a_model_that_cannot_be_trained_is_told_by_its_name(tmp_path: Path) -> None:
    MistralConfig().save_pretrained(tmp_path)
    spec = TrainerSpec(TrainerBackend.MEGATRON, replace(OPTIONS, kl_coefficient=0.0))
    with pytest.raises(UserError, match=r"^model: 'models/mine' cannot be loaded .* set trainer\.backend to Torch"):
        create_trainer(spec, tmp_path, "models/mine", World())
