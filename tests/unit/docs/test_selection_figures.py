"""What a round selects for depends on whether a draw that was put off has the same random numbers again."""

from statistics import fmean

import pytest
from tools.selection_figures import Lengths, trained_tokens

from longshore.api.rollout import Strategy

NUM_ROUNDS = 10
"""Two periods of tail batching: nothing waits after the last one."""


def test_with_the_same_seeds_tail_batching_trains_on_the_same_responses_as_synchronous_rounds() -> None:
    synchronous, tail = (
        trained_tokens(strategy, Lengths(0.0, 1.0), NUM_ROUNDS)
        for strategy in (Strategy.SYNCHRONOUS, Strategy.TAIL_BATCHING)
    )
    assert sorted(tail) == sorted(synchronous)


@pytest.mark.parametrize("strategy", [Strategy.TAIL_BATCHING, Strategy.REORDER_ROLLOUT])
def test_with_other_seeds_chance_replaces_long_responses(strategy: Strategy) -> None:
    kept, renewed = (trained_tokens(strategy, Lengths(0.0, 1.0, renews=renews), NUM_ROUNDS) for renews in (False, True))
    assert fmean(renewed) < 0.96 * fmean(kept)
