"""Replicas of several ranks behind one handle: as Ray actors they train what one process alone would."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from transformers import MistralConfig

from longshore.api.training import TrainerBackend
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.tiny_model import build_tiny_model
from longshore_runtime.backends.trainer_spec import TrainerSpec
from longshore_runtime.backends.trainers import create_trainer
from longshore_runtime.backends.world import World
from longshore_runtime.errors import LogProbMismatch, TrainerLost, UserError
from longshore_runtime.places import Place
from longshore_runtime.rollout.published import StoredWeights
from longshore_runtime.trainer.group import TrainerGroup
from longshore_runtime.weights.buckets import checksums, combined_checksum
from tests.contract.trainers.replicas import (
    OPTIONS,
    Kind,
    assert_same_weights,
    figures,
    make_samples,
    step,
    with_masks,
)
from tests.ray_pods import TRAINERS, worker_pods

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

BATCHES = [with_masks(make_samples(seed=seed)) for seed in range(2)]
TWO_BY_TWO = [Place(0, ())] * 4
SIZES = ParallelSizes(tensor=2)
SHARDS = ParallelSizes(fsdp=2)
LIMIT_S = 180.0


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A job's storage with a tiny model in it, and worker 0."""
    root = tmp_path_factory.mktemp("storage")
    build_tiny_model(root / "model", seed=0)
    with worker_pods(root, count=1, imports=TRAINERS):
        yield root


@pytest.mark.parametrize(
    ("backend", "sizes"),
    [(TrainerBackend.FAKE, SIZES), (TrainerBackend.MEGATRON, SIZES), (TrainerBackend.TORCH, SHARDS)],
    ids=str,
)
def test_two_replicas_of_two_ranks_are_one_trainer(
    backend: TrainerBackend, sizes: ParallelSizes, storage: Path
) -> None:
    """Updates, weights and checkpoints; a lost rank; all in one story, since starting four ranks takes seconds."""
    trainers = TrainerGroup(TWO_BY_TWO, TrainerSpec(backend, OPTIONS, sizes), "model", "output")
    kind = Kind(backend.lower(), storage / "model")
    alone = kind.start()
    before = dict(alone.weights())

    computed, expected_log_probs = trainers.log_probs(BATCHES[0]), alone.log_probs(BATCHES[0])
    assert computed.compute_s > 0
    assert computed.work is not None
    assert {one.replica for one in computed.work.passes} == {0, 1}
    assert trainers.num_computed() == trainers.num_given == len(BATCHES[0]), "each sample of one replica counts once"
    for place, sample in enumerate(BATCHES[0]):
        assert computed.by_sample[sample.key] == pytest.approx(expected_log_probs[place], rel=1e-4)

    for version, batch in enumerate(BATCHES, start=1):
        update = trainers.begin()
        trainers.add(update, batch[:5])
        trainers.add(update, batch[5:])
        trainers.end(update)
        now_s = time.monotonic()
        trained, expected = trainers.finish(update), step(alone, [batch])
        assert trained.update.policy_version == version
        assert trained.work is not None
        passes = [(one.replica, one.given_s <= now_s, one.compute_s > 0) for one in trained.work.passes]
        assert passes == [(0, True, True), (1, True, True)] * 2, "once per replica and part, whatever ranks it has"
        assert 0 < trained.work.update_s <= trained.compute_s
        assert 0 < trained.gradients_s <= 2 * trained.compute_s, "every replica counts once"
        assert trained.update.grad_norm == pytest.approx(expected.report.grad_norm, rel=1e-4)
        assert figures(trained.sums) == pytest.approx(figures(expected.sums), rel=1e-3, abs=1e-6)
        assert_same_weights(kind, before, expected.weights, published(trainers, version))

    assert trainers.num_computed() == trainers.num_given == 2 * len(BATCHES[0]) + len(BATCHES[1])
    saved = published(trainers, 2)
    directory = f"checkpoint-{backend}"
    (storage / directory).mkdir()
    wait_saved = trainers.begin_save(directory)
    trainers.sleep()
    trainers.wake()
    trainers.train(BATCHES[0])  # The ranks write what they had before.
    wait_saved()
    assert any(not np.array_equal(saved[name], values) for name, values in published(trainers, 3).items())
    trainers.load(directory)
    assert trainers.loaded_share() == 1
    restored = published(trainers, 2)
    assert all(np.array_equal(saved[name], restored[name]) for name in saved), "bit by bit"

    ray.kill(trainers._world.actors[1])
    with pytest.raises(TrainerLost):
        trainers.train(BATCHES[0])
    trainers.stop()


def published(trainers: TrainerGroup, version: int) -> dict[str, Any]:
    """What engines would be given."""
    return fetched(trainers.begin_copies(version)())


def fetched(weights: StoredWeights) -> dict[str, Any]:
    """All of it, as an engine sees it; its checksum is the one that was published."""
    buckets = [ray.get(reference) for reference in weights.buckets]
    assert combined_checksum(map(checksums, buckets)) == weights.checksum
    together = {name: values for bucket in buckets for name, values in bucket.items()}
    assert len(together) == sum(map(len, buckets)), "no parameter comes twice"
    return together


def test_work_for_one_replica_needs_no_other(storage: Path) -> None:
    """The second sleeps on while the first wakes and computes; a replica may get everything, or nothing."""
    trainers = TrainerGroup([Place(0, ())] * 2, TrainerSpec(TrainerBackend.TORCH, OPTIONS), "model", "output")
    kind = Kind("torch", storage / "model")
    alone = kind.start()
    before = dict(alone.weights())
    assert (trainers.num_replicas, trainers.replicas_on({0}), trainers.pods_of(1)) == (2, (0, 1), (0,))

    trainers.sleep()
    trainers.wake([0])
    update = trainers.begin()
    for part in (BATCHES[0][:3], BATCHES[0][3:7]):
        sums, _ = ray.get(trainers.give(update, 0, part), timeout=LIMIT_S)
        assert sums.num_tokens == sum(sample.num_response_tokens for sample in part)
    trainers.sleep([0])
    trainers.wake()
    trainers.give(update, 1, BATCHES[0][7:])
    trainers.end(update, verify=True)
    by_the_first = trainers.begin()
    trainers.give(by_the_first, 0, BATCHES[1])
    trainers.end(by_the_first, verify=True)

    for pending, batch in ((update, BATCHES[0]), (by_the_first, BATCHES[1])):
        trained, expected = trainers.finish(pending), step(alone, [batch])
        assert trained.gradient_difference is not None
        assert trained.gradient_difference < 1e-4
        assert trained.update.grad_norm == pytest.approx(expected.report.grad_norm, rel=1e-4)
        assert figures(trained.sums) == pytest.approx(figures(expected.sums), rel=1e-3, abs=1e-6)
    assert_same_weights(kind, before, dict(alone.weights()), published(trainers, 2))
    unverified = trainers.train(BATCHES[0])
    assert unverified.gradient_difference is None

    corrupted = trainers.begin()
    trainers.give(corrupted, 1, BATCHES[0][:5])
    trainers.end(corrupted, verify=True, batch=BATCHES[0])  # Nobody was given the others.
    assert max(ray.get(corrupted.differences, timeout=LIMIT_S)) > 1e-2
    with pytest.raises(AssertionError, match="other tokens than those of the batch"):
        trainers.finish(corrupted)
    trainers.stop()


def test_a_step_with_a_mismatch_changes_no_weights_and_can_be_trained_afterwards(storage: Path) -> None:
    """Its updates are queued one behind the other, and both replicas refuse all of them."""
    trainers = TrainerGroup([Place(0, ())] * 2, TrainerSpec(TrainerBackend.TORCH, OPTIONS), "model", "output")
    before = published(trainers, 0)
    mean = trainers.train(BATCHES[0]).sums.mean_mismatch
    assert mean is not None and 0.1 < mean < 3, "random log-probabilities"
    trained = published(trainers, 1)
    assert any(not np.array_equal(before[name], trained[name]) for name in before)

    far = [
        replace(one, trajectory=replace(one.trajectory, log_probs=one.trajectory.log_probs - 4))
        for one in BATCHES[0][:2]
    ]
    first, second = trainers.begin(), trainers.begin()
    trainers.give(first, 0, far)
    trainers.give(first, 1, BATCHES[0][2:])
    trainers.end(first, max_mismatch=mean / 10)
    trainers.add(second, BATCHES[1])
    trainers.end(second)
    for update in (first, second):
        with pytest.raises(LogProbMismatch) as refusal:
            trainers.finish(update)
        assert refusal.value.mean > mean / 10
    assert trainers.num_computed() == trainers.num_given == 2 * len(BATCHES[0]) + len(BATCHES[1]), "refused calls, too"
    unchanged = published(trainers, 1)
    assert all(np.array_equal(unchanged[name], trained[name]) for name in trained), "bit by bit"

    trainers.discard()
    again = trainers.begin()
    trainers.add(again, BATCHES[1])
    trainers.end(again, max_mismatch=10 * mean)
    assert trainers.finish(again).update.policy_version == 2
    kind = Kind("torch", storage / "model")
    alone = kind.start()
    for batch in BATCHES:
        step(alone, [batch])
    assert_same_weights(kind, before, dict(alone.weights()), published(trainers, 2))

    nan = [replace(one, advantage=float("nan")) for one in BATCHES[0]]
    with pytest.raises(UserError, match=r"^algorithm\.learningRate: the loss is nan"):
        trainers.train(nan)
    finite = published(trainers, 2)
    assert all(np.isfinite(values).all() for values in finite.values())
    trainers.stop()


def test_published_weights_come_in_buckets_and_outlive_the_trainers(storage: Path) -> None:
    """Two tensor-parallel ranks gather them; an engine that joins later still gets them."""
    spec = TrainerSpec(TrainerBackend.MEGATRON, OPTIONS, SIZES)
    trainers = TrainerGroup(TWO_BY_TWO[:2], spec, "model", "output")
    weights = trainers.begin_copies(0, max_bucket_bytes=200_000)()  # Too large to be sent along with an answer.
    trainers.stop()
    assert weights.policy_version == 0
    assert len(weights.buckets) > 3
    expected = dict(Kind("torch", storage / "model").start().weights())
    actual = fetched(weights)
    assert actual.keys() == expected.keys()
    assert all(np.array_equal(actual[name], expected[name]) for name in expected)


def test_a_checkpoint_of_another_backend_is_refused(storage: Path) -> None:
    (storage / "fake").mkdir()
    fake = TrainerGroup(TWO_BY_TWO[:1], TrainerSpec(TrainerBackend.FAKE, OPTIONS), "model", "output")
    fake.begin_save("fake")()
    fake.stop()
    torch = TrainerGroup(TWO_BY_TWO[:1], TrainerSpec(TrainerBackend.TORCH, OPTIONS), "model", "output")
    with pytest.raises(UserError, match=r"^trainer\.backend: the newest checkpoint was saved by Fake"):
        torch.load("fake")
    torch.stop()


def test_a_size_that_does_not_suit_the_model_is_reported_by_its_field(storage: Path) -> None:
    spec = TrainerSpec(TrainerBackend.MEGATRON, OPTIONS, ParallelSizes(tensor=4))
    with pytest.raises(UserError, match=r"^trainer\.tensorParallelSize: 4 does not divide the model's 2 key-value"):
        TrainerGroup(TWO_BY_TWO[:1], spec, "model", "output")


def test_a_model_that_cannot_be_trained_is_reported_by_its_name(tmp_path: Path) -> None:
    MistralConfig().save_pretrained(tmp_path)
    spec = TrainerSpec(TrainerBackend.MEGATRON, replace(OPTIONS, kl_coefficient=0.0))
    with pytest.raises(UserError, match=r"^model: 'models/mine' cannot be loaded .* set trainer\.backend to Torch"):
        create_trainer(spec, tmp_path, "models/mine", World())
