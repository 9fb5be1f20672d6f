"""Updates of a group of trainers that wait for one another."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import ray

from longshore.api.training import TrainerBackend
from longshore_runtime.backends.fake_trainer import FakeTrainer
from longshore_runtime.backends.trainer_spec import TrainerSpec
from longshore_runtime.places import Place
from longshore_runtime.trainer.group import TrainerGroup
from longshore_runtime.trainer.samples import step_denominator
from longshore_runtime.trainer_protocol import Sample
from longshore_runtime.weights.slices import Weights
from tests.contract.trainers.replicas import OPTIONS
from tests.ray_pods import worker_pods
from tests.unit.runtime.test_updates import group, samples_of


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainerGroup]:
    """Two fake replicas as Ray actors."""
    with worker_pods(tmp_path_factory.mktemp("storage"), count=1):
        group = TrainerGroup([Place(0, ()), Place(0, ())], TrainerSpec(TrainerBackend.FAKE, OPTIONS), "model", "output")
        yield group
        group.stop()


def alone(updates: Sequence[Sequence[Sample]]) -> Weights:
    """Weights of a single replica that makes these updates one after the other."""
    trainer = FakeTrainer(Path(), OPTIONS)
    for samples in updates:
        trainer.accumulate(samples)
        trainer.update(step_denominator(samples, OPTIONS))
    return dict(trainer.weights())


def test_an_update_that_is_begun_behind_another_waits_for_its_optimizer_step(trainers: TrainerGroup) -> None:
    """Nothing waits for the first update, and yet no sample of the second is added to it, on any replica."""
    first, second = samples_of([group(4), group(0), group(2)]), samples_of([group(5), group(1)])
    one, two = trainers.begin(), trainers.begin()
    trainers.add(one, first[:4])
    trainers.add(one, first[4:])
    trainers.end(one)
    trainers.add(two, second)
    trainers.end(two)
    late, early = trainers.finish(two), trainers.finish(one)
    assert (early.update.policy_version, late.update.policy_version) == (1, 2)
    assert early.sums.num_tokens == sum(len(sample.response_tokens) for sample in first)
    assert late.sums.num_tokens == sum(len(sample.response_tokens) for sample in second)
    (published,) = ray.get(list(trainers.weights(2).buckets))
    expected = alone([first, second])
    assert all(np.array_equal(published[name], expected[name]) for name in expected)
