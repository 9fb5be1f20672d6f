"""Advantages: each estimator against its formula, and what all of them promise."""

from collections.abc import Sequence
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.api.objectives.advantages import (
    OF_WHOLE_BATCH,
    Advantages,
    Estimator,
    RewardedGroup,
    Rewards,
    are_equal,
    best_only,
    centred,
    estimate,
    leave_one_out,
    length_weighted,
    normalised,
    normalised_by_batch,
    whitened,
)

rewards = st.lists(st.floats(-100, 100), min_size=2, max_size=32)
batches = st.lists(st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=5), min_size=1, max_size=5)
"""Batches of rewards as verifiers give them: either equal or clearly apart."""
LOCAL = [one for one in Estimator if one not in (*OF_WHOLE_BATCH, Estimator.GAE)]
ZERO_WITHOUT_SPREAD = [*LOCAL, Estimator.NORMALISED_BY_BATCH]


def estimated(estimator: Estimator, batch: Sequence[Rewards]) -> list[Advantages]:
    """Advantages of responses whose lengths are 1, 2, 3, … in the order of their rewards."""
    groups = [RewardedGroup(rewards, [1 + sorted(rewards).index(one) for one in rewards]) for rewards in batch]
    return estimate(estimator, groups, epsilon=1e-6)


def test_rewards_are_divided_by_their_unbiased_deviation() -> None:
    assert normalised([0.0, 1.0, 1.0, 0.0], epsilon=0.0) == pytest.approx([-0.866, 0.866, 0.866, -0.866], abs=1e-3)


def test_epsilon_is_added_to_the_deviation() -> None:
    assert normalised([0.0, 2.0], epsilon=1.0) == pytest.approx([-1 / (2**0.5 + 1), 1 / (2**0.5 + 1)])


@pytest.mark.parametrize("estimator", ZERO_WITHOUT_SPREAD)
@pytest.mark.parametrize(
    "group", [[], [0.7], [0.1] * 3, [1.0] * 8, [0.1 + 0.2, 0.3], [0.1 + 0.2 - 0.3, 0.0], [-1e9, -1e9 + 1e-4]]
)
def test_a_group_without_spread_gives_exactly_zero(estimator: Estimator, group: list[float]) -> None:
    silent, other = estimated(estimator, [group, [0.0, 0.3]])
    assert silent == (0.0,) * len(group)
    assert other[0] <= 0.0 < other[1]


@pytest.mark.parametrize("estimator", [*LOCAL, *OF_WHOLE_BATCH])
def test_a_batch_without_any_spread_gives_exactly_zero(estimator: Estimator) -> None:
    assert estimated(estimator, [[0.1 + 0.2, 0.3], [0.3, 0.3]]) == [(0.0, 0.0)] * 2


@pytest.mark.parametrize("group", [[0.3, 0.3 + 1e-6], [1e-6, 2e-6], [1e9, 1e9 + 10]])
def test_a_small_difference_of_rewards_is_a_signal(group: list[float]) -> None:
    assert not are_equal(group)
    assert normalised(group, epsilon=0.0) == pytest.approx([-(0.5**0.5), 0.5**0.5], abs=1e-3)


@given(rewards)
def test_advantages_of_a_group_sum_to_zero_and_keep_the_order_of_rewards(group: list[float]) -> None:
    advantages = normalised(group, epsilon=1e-6)
    assert sum(advantages) == pytest.approx(0.0, abs=1e-3)
    pairs = sorted(zip(group, advantages, strict=True))
    assert [advantage for _, advantage in pairs] == sorted(advantages)


@given(rewards, st.floats(-10, 10))
def test_a_shift_of_all_rewards_changes_nothing(group: list[float], shift: float) -> None:
    if stdev(group) < 1e-3:
        return
    shifted = normalised([reward + shift for reward in group], epsilon=1e-6)
    assert shifted == pytest.approx(normalised(group, epsilon=1e-6), abs=1e-6)
    assert fmean(shifted) == pytest.approx(0.0, abs=1e-9)


def test_centred_rewards_keep_their_scale() -> None:
    assert centred([0.0, 1.0, 1.0, 4.0]) == (-1.5, -0.5, -0.5, 2.5)


@given(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.4, 0.5, 0.6, 0.8, 1.0]), min_size=2, max_size=16), st.data())
def test_advantages_do_not_depend_on_the_order_in_which_responses_finished(
    rewards: list[float], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(rewards))))
    for estimator in Estimator:
        [once] = estimated(estimator, [rewards])
        [again] = estimated(estimator, [[rewards[place] for place in order]])
        assert [once[place] for place in order] == list(again)


@given(rewards)
def test_the_leave_one_out_baseline_is_the_mean_of_the_others(group: list[float]) -> None:
    expected = [reward - fmean(group[:place] + group[place + 1 :]) for place, reward in enumerate(group)]
    assert leave_one_out(group) == pytest.approx(expected, abs=1e-9)


@given(rewards, st.data())
def test_long_responses_count_more_in_the_baseline_of_opo(group: list[float], data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=len(group), max_size=len(group)))
    baseline = fmean(group, weights=lengths)
    assert length_weighted(group, lengths) == pytest.approx([reward - baseline for reward in group], abs=1e-6)


def test_the_best_response_alone_has_an_advantage_for_pass_at_k() -> None:
    assert best_only([0.0, 3.0, 1.0], epsilon=0.0) == (0.0, pytest.approx(2.0 / stdev([0.0, 3.0, 1.0])), 0.0)
    assert best_only([0.0, 3.0, 3.0], epsilon=0.0) == (0.0, 0.0, 0.0)


def test_the_deviation_of_a_batch_is_that_of_its_rewards() -> None:
    batch = [[0.0, 1.0], [4.0, 4.0]]
    assert normalised_by_batch(batch, epsilon=0.0)[0][1] == pytest.approx(0.5 / stdev([0.0, 1.0, 4.0, 4.0]))


def test_reward_functions_of_unlike_scales_count_alike_when_normalised_alone() -> None:
    parts = [(1.0, [0.0, 1.0, 0.0, 1.0]), (1.0, [0.0, 0.0, 1000.0, 1000.0])]
    group = RewardedGroup([0.0, 1.0, 1000.0, 1001.0], [1] * 4, parts)
    [(worst, answer, form, best)] = estimate(Estimator.NORMALISED_BY_FUNCTION, [group], epsilon=1e-9)
    assert (answer, form) == pytest.approx((0.0, 0.0), abs=1e-6)
    assert -worst == pytest.approx(best) and best > 1.0


@given(st.lists(st.tuples(st.integers(-5, 5).map(float), st.integers(1, 9)), min_size=2, max_size=8))
def test_whitened_advantages_have_mean_0_and_variance_1_over_tokens(found: list[tuple[float, int]]) -> None:
    given_rewards, lengths = zip(*found, strict=True)
    values = [value for (value,) in whitened([[reward] for reward in given_rewards], [[length] for length in lengths])]
    by_token = [value for value, length in zip(values, lengths, strict=True) for _ in range(length)]
    assert fmean(by_token) == pytest.approx(0.0, abs=1e-6)
    if not are_equal(given_rewards):
        assert stdev(by_token) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("estimator", LOCAL)
@given(batches)
def test_a_group_s_advantages_do_not_depend_on_the_batch_around_it(
    estimator: Estimator, batch: list[list[float]]
) -> None:
    assert estimated(estimator, batch) == [estimated(estimator, [group])[0] for group in batch]


@pytest.mark.parametrize("estimator", OF_WHOLE_BATCH)
def test_estimators_of_the_whole_batch_depend_on_it(estimator: Estimator) -> None:
    batch = [[0.0, 1.0], [0.0, 10.0]]
    assert estimated(estimator, batch) != [estimated(estimator, [group])[0] for group in batch]
