"""Accumulated gradients against one pass over the batch: every mistake that a stream can make differs from rounding."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.trainer_protocol import Sample
from longshore_runtime.backends.world import World
from longshore_runtime.trainer.group import step_denominator
from longshore_runtime.weights.slices import Weights
from tests.contract.trainers.ranks import kept_ranks
from tests.contract.trainers.replicas import OPTIONS, Kind, make_samples, options_of, own_part, step, with_masks

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

ROUNDING, MISTAKE = 1e-4, 1e-2
SAMPLES = with_masks(make_samples())
PARTS = [SAMPLES[7:], SAMPLES[2:7], SAMPLES[:2]]
REPORTED = next(
    number
    for number, sample in enumerate(SAMPLES)
    if sample.advantage and 0 < sample.num_loss_tokens < sample.num_response_tokens
)
"""Place of a sample that has both, an advantage and tokens that are not in the loss."""
DENOMINATOR = step_denominator(SAMPLES, OPTIONS)


def dropped(samples: Sequence[Sample]) -> list[Sample]:
    return [sample for number, sample in enumerate(samples) if number != REPORTED]


def doubled(samples: Sequence[Sample]) -> list[Sample]:
    return [*samples, samples[REPORTED]]


def wrong_advantage(samples: Sequence[Sample]) -> list[Sample]:
    changed = replace(samples[REPORTED], advantage=samples[REPORTED].advantage + 0.5)
    return [changed if number == REPORTED else sample for number, sample in enumerate(samples)]


def wrong_mask(samples: Sequence[Sample]) -> list[Sample]:
    changed = replace(samples[REPORTED], loss_mask=None)
    assert changed.num_loss_tokens > samples[REPORTED].num_loss_tokens
    return [changed if number == REPORTED else sample for number, sample in enumerate(samples)]


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("name", ["GRPO", "GSPO"])
def test_a_stream_in_any_order_differs_by_rounding_only(kind: Kind, name: str, offload: bool) -> None:
    trainer = kind.start(replace(options_of(name), offload_gradients=offload, offload_reference=offload))
    for part in PARTS:
        trainer.accumulate(part)
    assert trainer.compare(SAMPLES, DENOMINATOR) < ROUNDING


@pytest.mark.parametrize("mistake", [dropped, doubled, wrong_advantage, wrong_mask])
def test_a_mistake_is_far_beyond_rounding(kind: Kind, mistake: Callable[[Sequence[Sample]], list[Sample]]) -> None:
    trainer = kind.start()
    trainer.accumulate(mistake(SAMPLES))
    assert trainer.compare(SAMPLES, DENOMINATOR) > MISTAKE


def test_nothing_changes_what_was_accumulated(kind: Kind) -> None:
    watched, other = kind.start(), kind.start()
    for part in PARTS:
        watched.accumulate(part)
        watched.compare(SAMPLES, DENOMINATOR)
        watched.compare(part, DENOMINATOR)
        other.accumulate(part)
        other.sleep()  # Everything waits on the host, as it does during a comparison.
    assert watched.update(DENOMINATOR) == other.update(DENOMINATOR)
    one, same = dict(watched.weights()), dict(other.weights())
    assert all(np.array_equal(one[name], same[name]) for name in one), "bit by bit"


def test_where_nothing_should_be_the_difference_is_absolute(kind: Kind) -> None:
    trainer = kind.start(replace(OPTIONS, kl_coefficient=0.0))
    silent = [replace(sample, advantage=0.0) for sample in SAMPLES]
    if not kind.exact:
        assert trainer.compare(silent, DENOMINATOR) == 0.0
    trainer.accumulate(SAMPLES)
    small, large = (trainer.compare([], denominator) for denominator in (2 * DENOMINATOR, DENOMINATOR))
    assert large == pytest.approx(2 * small)
    assert large > 0


def test_a_gradient_that_is_not_finite_differs_infinitely(model: Path) -> None:
    trainer = Kind("torch", model).start()
    trainer.accumulate([replace(sample, advantage=float("inf")) for sample in SAMPLES])
    assert trainer.compare(SAMPLES, DENOMINATOR) == float("inf")


def compared(world: World, kind: Kind, given: list[list[Sample]], sizes: ParallelSizes | None) -> tuple[float, Weights]:
    """Each replica accumulates its part of what was given, and passes once over its part of the whole."""
    sizes = sizes or ParallelSizes()
    trainer = kind.start(world=world, sizes=sizes)
    replica, size = sizes.replica(world.rank), world.size // sizes.ranks_per_replica
    trainer.accumulate(own_part(given[replica], world, sizes))
    difference = trainer.compare(own_part(SAMPLES[replica::size], world, sizes), DENOMINATOR)
    trainer.update(DENOMINATOR)
    return difference, dict(trainer.weights())


@pytest.mark.parametrize("mistake", [None, dropped, doubled])
def test_replicas_are_compared_together(kind: Kind, mistake: Callable[[Sequence[Sample]], list[Sample]] | None) -> None:
    given = mistake(SAMPLES) if mistake else SAMPLES
    differences = [found for found, _ in kept_ranks(2).run(compared, kind, [given[9:], given[:9]], None)]
    assert all(found > MISTAKE if mistake else found < ROUNDING for found in differences)


@pytest.mark.parametrize(
    "sizes",
    [
        ParallelSizes(tensor=2),
        pytest.param(ParallelSizes(pipeline=2), marks=pytest.mark.soak),
        pytest.param(ParallelSizes(context=2), marks=pytest.mark.soak),
        ParallelSizes(fsdp=2),
    ],
    ids=str,
)
def test_ranks_that_share_a_replica_compare_their_parts(sizes: ParallelSizes, model: Path) -> None:
    kind = Kind("torch" if sizes.fsdp > 1 else "megatron", model)
    found = kept_ranks(4).run(compared, kind, [SAMPLES[:3], SAMPLES[3:]], sizes)
    wrong = kept_ranks(4).run(compared, kind, [SAMPLES[:3], dropped(SAMPLES)[3:]], sizes)
    assert max(difference for difference, _ in found) < ROUNDING
    assert max(difference for difference, _ in wrong) > MISTAKE
    whole = step(kind.start(), [SAMPLES]).weights
    assert all(np.allclose(found[0][1][name], whole[name], rtol=1e-3, atol=1e-4) for name in whole)
