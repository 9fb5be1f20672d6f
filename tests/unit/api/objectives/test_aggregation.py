"""Weights and denominators: together they are the means that the papers write."""

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.api.objectives.aggregation import Aggregation, denominator, token_weight

MAX_TOKENS = 6
batches = st.lists(st.lists(st.floats(-5, 5), max_size=MAX_TOKENS), max_size=6)


def step_loss(aggregation: Aggregation, batch: list[list[float]]) -> float:
    """As a trainer computes it: weighted sums, one division at the end."""
    return loss_of_samples(aggregation, [(losses, 1.0) for losses in batch])


def loss_of_samples(aggregation: Aggregation, samples: list[tuple[list[float], float]]) -> float:
    """The same of samples that are shares of responses."""
    total = sum(token_weight(aggregation, len(losses), share) * loss for losses, share in samples for loss in losses)
    return total / denominator(aggregation, [(len(losses), share) for losses, share in samples], MAX_TOKENS)


@given(batches)
def test_every_aggregation_is_the_mean_that_its_name_says(batch: list[list[float]]) -> None:
    responses = [losses for losses in batch if losses]
    if not responses:
        assert all(step_loss(aggregation, batch) == 0.0 for aggregation in Aggregation)
        return
    expected = {
        Aggregation.TOKEN_MEAN: fmean(loss for losses in responses for loss in losses),
        Aggregation.SEQUENCE_MEAN: fmean(fmean(losses) for losses in responses),
        Aggregation.SEQUENCE_SUM: fmean(sum(losses) for losses in responses),
        Aggregation.CONSTANT_LENGTH: fmean(sum(losses) / MAX_TOKENS for losses in responses),
    }
    for aggregation in Aggregation:
        assert step_loss(aggregation, batch) == pytest.approx(expected[aggregation], abs=1e-9)


@given(batches, st.sampled_from(Aggregation), st.data())
def test_a_response_in_several_samples_counts_as_one(
    batch: list[list[float]], aggregation: Aggregation, data: st.DataObject
) -> None:
    samples = []
    for losses in batch:
        cut = data.draw(st.integers(0, len(losses)))
        parts = [part for part in (losses[:cut], losses[cut:]) if part]
        samples += [(part, len(part) / len(losses)) for part in parts]
    assert loss_of_samples(aggregation, samples) == pytest.approx(step_loss(aggregation, batch), abs=1e-9)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        (Aggregation.TOKEN_MEAN, 13.0),
        (Aggregation.SEQUENCE_MEAN, 3.0),
        (Aggregation.SEQUENCE_SUM, 3.0),
        (Aggregation.CONSTANT_LENGTH, 30.0),
    ],
)
def test_a_response_without_loss_tokens_does_not_count(aggregation: Aggregation, expected: float) -> None:
    assert denominator(aggregation, [(4, 1.0), (0, 1.0), (8, 1.0), (1, 1.0)], max_response_tokens=10) == expected


@pytest.mark.parametrize("aggregation", Aggregation)
def test_a_step_without_loss_tokens_is_divided_by_one(aggregation: Aggregation) -> None:
    assert denominator(aggregation, [(0, 1.0)] * 2, 10) == denominator(aggregation, [], 10) == 1.0
