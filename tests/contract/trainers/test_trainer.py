"""What every trainer promises, whatever trains inside: see `Trainer`."""

import itertools
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from longshore.api.algorithm import LearningRateSchedule
from longshore.api.correction import RolloutCorrection
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.backends.trainer_protocol import Sample, Trainer, TrainerOptions
from tests.contract.trainers.replicas import (
    BUILT_IN,
    OPTIONS,
    Kind,
    SeenMeter,
    assert_same_weights,
    clipped_at,
    figures,
    make_samples,
    options_of,
    step,
    with_masks,
    without_kl,
    world_step,
)

SAMPLES = make_samples()
MASKED = with_masks(SAMPLES)


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        *((name, 0) for name in BUILT_IN),
        *(pytest.param("GRPO", seed, marks=pytest.mark.soak) for seed in (1, 2, 3)),
    ],
)
def test_a_streamed_update_equals_that_of_the_whole_batch_in_any_order(kind: Kind, name: str, seed: int) -> None:
    rng, options = random.Random(seed), options_of(name)
    shuffled = rng.sample(MASKED, len(MASKED))
    cuts = sorted(rng.sample(range(1, len(MASKED)), 3))
    parts = [shuffled[start:end] for start, end in zip([0, *cuts], [*cuts, len(MASKED)], strict=True)]
    whole, streamed = kind.start(options), kind.start(options)
    before = dict(whole.weights())
    one, other = step(whole, [MASKED], options), step(streamed, parts, options)
    assert other.report.grad_norm == pytest.approx(one.report.grad_norm, rel=1e-4)
    assert figures(other.sums) == pytest.approx(figures(one.sums), rel=1e-3)
    assert_same_weights(kind, before, one.weights, other.weights)


@pytest.mark.parametrize(
    ("name", "share"),
    [("GRPO", 0), ("GRPO", 7), ("GSPO", 2), ("DrGRPO", 5)],
)
def test_replicas_with_uneven_shares_equal_a_single_one(kind: Kind, name: str, share: int) -> None:
    options = options_of(name)
    single = kind.start(options)
    before = dict(single.weights())
    step(single, [MASKED], options)
    expected = step(single, [MASKED], options)
    replicas = world_step(kind, [MASKED[share:], MASKED[:share]], num_steps=2, options=options)
    for replica in replicas:
        assert replica.report.grad_norm == pytest.approx(expected.report.grad_norm, rel=1e-3)
        assert_same_weights(kind, before, expected.weights, replica.weights)
    first, second = (replica.weights for replica in replicas)
    assert all(np.array_equal(first[name], second[name]) for name in first), "replicas hold equal weights"
    assert sum(replica.sums.num_tokens for replica in replicas) == expected.sums.num_tokens


def test_tokens_of_samples_without_advantage_are_counted(kind: Kind) -> None:
    silent = [sample for sample in SAMPLES if sample.advantage == 0.0]
    sums = kind.start().accumulate(silent)
    assert sums.num_tokens == sum(sample.num_response_tokens for sample in silent) > 0
    assert sums.policy_loss == 0.0


def test_a_sample_without_loss_mask_tokens_changes_nothing_but_the_count(kind: Kind) -> None:
    masked = [replace(sample, loss_mask=(False,) * sample.num_response_tokens) for sample in SAMPLES[6:]]
    num_tokens = sum(sample.num_response_tokens for sample in masked)
    without, beside = kind.start(), kind.start()
    before = dict(without.weights())
    one, other = step(without, [SAMPLES[:6]]), step(beside, [SAMPLES[:6], masked])
    assert other.sums == one.sums + GradientSums(num_tokens=num_tokens)
    assert_same_weights(kind, before, one.weights, other.weights)


def test_a_batch_of_masked_tokens_alone_makes_a_step_without_gradient(kind: Kind) -> None:
    masked = [replace(sample, loss_mask=(False,) * sample.num_response_tokens) for sample in SAMPLES]
    outcome = step(kind.start(), [masked])
    assert (outcome.report.grad_norm, outcome.report.policy_version) == (0.0, 1)
    assert outcome.sums == GradientSums(num_tokens=sum(sample.num_response_tokens for sample in SAMPLES))


def test_an_update_starts_from_zero(kind: Kind) -> None:
    trainer, other = kind.start(), kind.start()
    step(trainer, [SAMPLES[:4]])
    step(other, [SAMPLES[:4]])
    before = dict(other.weights())
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
    stopped.begin_save(tmp_path)()
    resumed = kind.start()
    resumed.accumulate(batches[3])  # What was accumulated before `load` belongs to other weights.
    resumed.load(tmp_path)
    train(resumed, batches[2:])
    assert versions == [1, 2, 3, 4, 1, 2, 3, 4]
    expected, actual = dict(uninterrupted.weights()), dict(resumed.weights())
    assert all(np.array_equal(expected[name], actual[name]) for name in expected), "bit by bit"


def test_a_checkpoint_holds_what_was_there_when_it_was_begun(kind: Kind, tmp_path: Path) -> None:
    """Passes go on while it is written, asleep or awake; the next update waits."""
    trainer, resumed = kind.start(), kind.start()
    expected = dict(step(trainer, [SAMPLES[:4]]).weights)
    write = trainer.begin_save(tmp_path)
    trainer.accumulate(SAMPLES[4:8])
    trainer.sleep()
    write()
    resumed.load(tmp_path)
    assert all(np.array_equal(expected[name], values) for name, values in resumed.weights())
    assert resumed.policy_version == 1


def test_while_it_loads_a_checkpoint_it_says_how_far_it_is(kind: Kind, tmp_path: Path) -> None:
    trained, meter = kind.start(), SeenMeter()
    step(trained, [SAMPLES])
    trained.begin_save(tmp_path)()
    resumed = kind.start(meter=meter)
    for _ in range(2):
        with meter.loading():
            meter.shown_shares.clear()
            resumed.load(tmp_path)
            assert meter.loaded_share == pytest.approx(1.0), "weights and moments"
            steps = [after - before for before, after in itertools.pairwise([0.0, *meter.shown_shares])]
        assert min(steps) > 0
        assert kind.name == "fake" or max(steps) < 0.5


def test_the_learning_rate_goes_on_from_a_checkpoint_where_it_was(kind: Kind, tmp_path: Path) -> None:
    options = replace(OPTIONS, learning_rate_schedule=LearningRateSchedule.COSINE, warmup_steps=2, num_updates=6)

    def rates(trainer: Trainer, num_steps: int) -> list[float]:
        return [step(trainer, [SAMPLES[:2]], options).report.learning_rate for _ in range(num_steps)]

    uninterrupted = rates(kind.start(options), 6)
    stopped = kind.start(options)
    first = rates(stopped, 3)
    stopped.begin_save(tmp_path)()
    resumed = kind.start(options)
    resumed.load(tmp_path)
    assert first + rates(resumed, 3) == uninterrupted
    assert len(set(uninterrupted)) == 6


def test_log_probs_are_those_that_gradients_are_computed_with(kind: Kind) -> None:
    """By them no ratio is anything but 1, and nothing that was accumulated has changed."""
    options = clipped_at(1e-5, 1e-5, replace(without_kl(), rollout_correction=RolloutCorrection()))
    trainer, plain = kind.start(options), kind.start(options)
    first = [trainer.accumulate(MASKED[:4]), plain.accumulate(MASKED[:4])]
    found = trainer.log_probs(MASKED)
    assert sorted(found) == list(range(len(MASKED)))
    decoupled = [replace(sample, old_log_probs=found[place]) for place, sample in enumerate(MASKED)]
    assert all(len(found[place]) == sample.num_response_tokens for place, sample in enumerate(MASKED))
    one, other = trainer.accumulate(decoupled), plain.accumulate(MASKED)
    assert first[0] == first[1]
    assert one.clipped == 0.0
    assert one.policy_loss == pytest.approx(other.policy_loss, rel=1e-5)
    before = dict(plain.weights())
    trainer.update(100.0)
    plain.update(100.0)
    assert_same_weights(kind, before, dict(plain.weights()), dict(trainer.weights())) if not kind.exact else None


def test_weights_are_copies(kind: Kind) -> None:
    trainer = kind.start()
    before = dict(trainer.weights())
    kept = {name: values.copy() for name, values in before.items()}
    step(trainer, [SAMPLES])
    assert all(np.array_equal(before[name], kept[name]) for name in before)
    assert any(not np.array_equal(dict(trainer.weights())[name], kept[name]) for name in kept)
    assert all(values.dtype == np.float32 for values in before.values())


@pytest.mark.parametrize("options", [OPTIONS, without_kl()], ids=["with a reference", "alone"])
def test_while_it_computes_it_says_how_far_it_is(kind: Kind, options: TrainerOptions) -> None:
    """Evenly over all passes: those without gradients and of the reference as well."""
    meter = SeenMeter()
    trainer = kind.start(options, meter=meter)
    for compute in (trainer.accumulate, trainer.log_probs):
        before, meter.shown = meter.num_computed, []
        with meter.call(len(MASKED)):
            compute(MASKED)
            within = [(value - before) / len(MASKED) for value in meter.shown]
        assert meter.num_computed == before + len(MASKED)
        assert within == sorted(within)
        steps = [after - value for value, after in zip([0.0, *within], [*within, 1.0], strict=True)]
        assert len(within) >= 4
        assert max(steps) < 0.5
        assert within[-1] <= 1.0 + 1e-9
    trainer.compare(MASKED, 100.0)
    assert meter.num_computed == 2 * len(MASKED), "a check is no progress"
