"""Advantages: each estimator against its formula, and what all of them promise."""

from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.api.algorithm import AlgorithmName
from longshore.api.objective import OBJECTIVES, AdvantageEstimator
from longshore.policy.advantages import (
    are_equal,
    batch_advantages,
    centred_advantages,
    group_advantages,
    leave_one_out_advantages,
    whitened_advantages,
)

rewards = st.lists(st.floats(-100, 100), min_size=2, max_size=32)
batches = st.lists(st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=5), min_size=1, max_size=5)
"""Of rewards as verifiers give them: either equal or clearly apart."""
LOCAL = [estimator for estimator in AdvantageEstimator if estimator is not AdvantageEstimator.BATCH_WHITENED]


def test_rewards_are_divided_by_their_unbiased_deviation() -> None:
    assert group_advantages([0.0, 1.0, 1.0, 0.0], epsilon=0.0) == pytest.approx(
        [-0.866, 0.866, 0.866, -0.866], abs=1e-3
    )


def test_epsilon_is_added_to_the_deviation() -> None:
    assert group_advantages([0.0, 2.0], epsilon=1.0) == pytest.approx([-1 / (2**0.5 + 1), 1 / (2**0.5 + 1)])


@pytest.mark.parametrize("estimator", AdvantageEstimator)
@pytest.mark.parametrize(
    "group", [[], [0.7], [0.1] * 3, [1.0] * 8, [0.1 + 0.2, 0.3], [0.1 + 0.2 - 0.3, 0.0], [-1e9, -1e9 + 1e-4]]
)
def test_a_group_without_spread_gives_exactly_zero(estimator: AdvantageEstimator, group: list[float]) -> None:
    silent, other = batch_advantages(estimator, [group, [0.0, 0.3]], epsilon=1e-6)
    assert silent == (0.0,) * len(group)
    assert other[0] < 0.0 < other[1]


@pytest.mark.parametrize("group", [[0.3, 0.3 + 1e-6], [1e-6, 2e-6], [1e9, 1e9 + 10]])
def test_a_small_difference_of_rewards_is_a_signal(group: list[float]) -> None:
    assert not are_equal(group)
    assert group_advantages(group, epsilon=0.0) == pytest.approx([-(0.5**0.5), 0.5**0.5], abs=1e-3)


@given(rewards)
def test_advantages_of_a_group_sum_to_zero_and_keep_the_order_of_rewards(group: list[float]) -> None:
    advantages = group_advantages(group, epsilon=1e-6)
    assert sum(advantages) == pytest.approx(0.0, abs=1e-3)
    pairs = sorted(zip(group, advantages, strict=True))
    assert [advantage for _, advantage in pairs] == sorted(advantages)


@given(rewards, st.floats(-10, 10))
def test_a_shift_of_all_rewards_changes_nothing(group: list[float], shift: float) -> None:
    if stdev(group) < 1e-3:
        return
    shifted = group_advantages([reward + shift for reward in group], epsilon=1e-6)
    assert shifted == pytest.approx(group_advantages(group, epsilon=1e-6), abs=1e-6)
    assert fmean(shifted) == pytest.approx(0.0, abs=1e-9)


def test_centred_rewards_keep_their_scale() -> None:
    assert centred_advantages([0.0, 1.0, 1.0, 4.0]) == (-1.5, -0.5, -0.5, 2.5)


@given(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.4, 0.5, 0.6, 0.8, 1.0]), min_size=2, max_size=16), st.data())
def test_advantages_do_not_depend_on_the_order_in_which_responses_finished(
    rewards: list[float], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(rewards))))
    for estimator in AdvantageEstimator:
        [once] = batch_advantages(estimator, [rewards], 1e-6)
        [again] = batch_advantages(estimator, [[rewards[place] for place in order]], 1e-6)
        assert [once[place] for place in order] == list(again)


@given(rewards)
def test_the_leave_one_out_baseline_is_the_mean_of_the_others(group: list[float]) -> None:
    expected = [reward - fmean(group[:place] + group[place + 1 :]) for place, reward in enumerate(group)]
    assert leave_one_out_advantages(group) == pytest.approx(expected, abs=1e-9)


@given(batches)
def test_whitening_normalises_centred_rewards_over_the_batch(batch: list[list[float]]) -> None:
    centred = [reward - fmean(group) for group in batch for reward in group]
    values = [value for group in whitened_advantages(batch, epsilon=0.5) for value in group]
    mean, spread = fmean(centred), stdev(centred)
    assert values == pytest.approx([(value - mean) / (spread + 0.5) for value in centred], abs=1e-9)


@given(st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=8))
def test_responses_without_siblings_are_whitened_over_the_batch(found: list[float]) -> None:
    values = [value for (value,) in whitened_advantages([[reward] for reward in found], epsilon=0.5)]
    expected = [(reward - fmean(found)) / (stdev(found) + 0.5) for reward in found]
    assert values == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("estimator", LOCAL)
@given(batches)
def test_a_group_s_advantages_do_not_depend_on_the_batch_around_it(
    estimator: AdvantageEstimator, batch: list[list[float]]
) -> None:
    alone = [batch_advantages(estimator, [group], epsilon=1e-6)[0] for group in batch]
    assert batch_advantages(estimator, batch, epsilon=1e-6) == alone


def test_whitening_alone_depends_on_the_whole_batch() -> None:
    batch = [[0.0, 1.0], [0.0, 10.0]]
    alone = [whitened_advantages([group], epsilon=1e-6)[0] for group in batch]
    assert whitened_advantages(batch, epsilon=1e-6) != alone
    whole = [name for name, objective in OBJECTIVES.items() if objective.needs_whole_batch]
    assert whole == [AlgorithmName.REINFORCE_PLUS_PLUS]


def test_every_algorithm_has_an_objective() -> None:
    assert set(OBJECTIVES) == set(AlgorithmName)
