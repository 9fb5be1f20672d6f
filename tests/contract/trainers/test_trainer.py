"""What every trainer promises, whatever trains inside: see `types.Trainer`."""

import random
from pathlib import Path

import numpy as np
import pytest

from longshore_runtime.types import Sample
from tests.contract.trainers.replicas import Kind, assert_same_weights, make_samples, step, world_step

SAMPLES = make_samples()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_streamed_update_equals_that_of_the_whole_batch_in_any_order(kind: Kind, seed: int) -> None:
    rng = random.Random(seed)
    shuffled = rng.sample(SAMPLES, len(SAMPLES))
    cuts = sorted(rng.sample(range(1, len(SAMPLES)), 3))
    parts = [shuffled[start:end] for start, end in zip([0, *cuts], [*cuts, len(SAMPLES)], strict=True)]
    whole, streamed = kind.start(), kind.start()
    before = whole.weights()
    one, other = step(whole, [SAMPLES]), step(streamed, parts)
    assert other.report.grad_norm == pytest.approx(one.report.grad_norm, rel=1e-4)
    assert_same_weights(kind, before, one.weights, other.weights)


@pytest.mark.parametrize("share", [0, 2, 7])
def test_replicas_with_uneven_shares_equal_a_single_one(kind: Kind, share: int) -> None:
    single = kind.start()
    before = single.weights()
    step(single, [SAMPLES])
    expected = step(single, [SAMPLES])
    replicas = world_step(kind, [SAMPLES[share:], SAMPLES[:share]], num_steps=2)
    for replica in replicas:
        assert replica.report.grad_norm == pytest.approx(expected.report.grad_norm, rel=1e-3)
        assert_same_weights(kind, before, expected.weights, replica.weights)
    first, second = (replica.weights for replica in replicas)
    assert all(np.array_equal(first[name], second[name]) for name in first), "replicas hold equal weights"
    assert sum(replica.sums.num_tokens for replica in replicas) == expected.sums.num_tokens


def test_tokens_of_samples_without_advantage_are_counted(kind: Kind) -> None:
    silent = [sample for sample in SAMPLES if sample.advantage == 0.0]
    sums = kind.start().accumulate(silent)
    assert sums.num_tokens == sum(len(sample.response_tokens) for sample in silent) > 0
    assert sums.policy_loss == 0.0


def test_the_denominator_changes_the_update(kind: Kind) -> None:
    def weights(num_tokens: int) -> dict[str, list[float]]:
        trainer = kind.start()
        for _ in range(2):  # Adam's first step alone does not depend on the gradient's scale.
            trainer.accumulate(SAMPLES)
            trainer.update(num_tokens)
            num_tokens = 400
        return {name: values.tolist() for name, values in trainer.weights().items()}

    assert weights(400) != weights(4_000)


def test_an_update_begins_anew(kind: Kind) -> None:
    trainer, other = kind.start(), kind.start()
    step(trainer, [SAMPLES[:4]])
    step(other, [SAMPLES[:4]])
    before = other.weights()
    other.accumulate(SAMPLES[8:])
    other.discard()
    one, same = step(trainer, [SAMPLES[4:8]]), step(other, [SAMPLES[4:8]])
    assert_same_weights(kind, before, one.weights, same.weights)


def test_training_that_goes_on_from_a_checkpoint_equals_the_uninterrupted_one(kind: Kind, tmp_path: Path) -> None:
    def train(trainer: object, batches: list[list[Sample]]) -> None:
        for batch in batches:
            outcome = step(trainer, [batch])  # type: ignore[arg-type]
            versions.append(outcome.report.policy_version)

    versions: list[int] = []
    batches = [make_samples(seed=seed) for seed in range(4)]
    uninterrupted = kind.start()
    train(uninterrupted, batches)
    stopped = kind.start()
    train(stopped, batches[:2])
    stopped.save(tmp_path)
    resumed = kind.start()
    resumed.accumulate(batches[3])  # What was accumulated before `load` belongs to other weights.
    resumed.load(tmp_path)
    train(resumed, batches[2:])
    assert versions == [1, 2, 3, 4, 1, 2, 3, 4]
    expected, actual = uninterrupted.weights(), resumed.weights()
    assert all(np.array_equal(expected[name], actual[name]) for name in expected), "bit by bit"


def test_weights_are_copies(kind: Kind) -> None:
    trainer = kind.start()
    before = trainer.weights()
    kept = {name: values.copy() for name, values in before.items()}
    step(trainer, [SAMPLES])
    assert all(np.array_equal(before[name], kept[name]) for name in before)
    assert any(not np.array_equal(trainer.weights()[name], kept[name]) for name in kept)
    assert all(values.dtype == np.float32 for values in before.values())


def test_sleeping_between_steps_changes_nothing(kind: Kind) -> None:
    awake, drowsy = kind.start(), kind.start()
    before = awake.weights()
    for trainer in (awake, drowsy):
        step(trainer, [SAMPLES])
    drowsy.sleep()
    drowsy.wake()
    one, other = step(awake, [SAMPLES]), step(drowsy, [SAMPLES])
    assert_same_weights(kind, before, one.weights, other.weights)
