"""Advantages: each estimator against its formula, and what all of them promise."""

from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.api.objectives.advantages import are_equal, centred, leave_one_out, normalised, whitened
from longshore.api.objectives.registry import OBJECTIVES, WHOLE_BATCH

rewards = st.lists(st.floats(-100, 100), min_size=2, max_size=32)
batches = st.lists(st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=5), min_size=1, max_size=5)
"""Of rewards as verifiers give them: either equal or clearly apart."""
LOCAL = [name for name in OBJECTIVES if name not in WHOLE_BATCH]


def test_rewards_are_divided_by_their_unbiased_deviation() -> None:
    assert normalised([0.0, 1.0, 1.0, 0.0], epsilon=0.0) == pytest.approx([-0.866, 0.866, 0.866, -0.866], abs=1e-3)


def test_epsilon_is_added_to_the_deviation() -> None:
    assert normalised([0.0, 2.0], epsilon=1.0) == pytest.approx([-1 / (2**0.5 + 1), 1 / (2**0.5 + 1)])


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(
    "group", [[], [0.7], [0.1] * 3, [1.0] * 8, [0.1 + 0.2, 0.3], [0.1 + 0.2 - 0.3, 0.0], [-1e9, -1e9 + 1e-4]]
)
def test_a_group_without_spread_gives_exactly_zero(name: str, group: list[float]) -> None:
    silent, other = OBJECTIVES[name].advantages([group, [0.0, 0.3]])
    assert silent == (0.0,) * len(group)
    assert other[0] < 0.0 < other[1]


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
    for objective in OBJECTIVES.values():
        [once] = objective.advantages([rewards])
        [again] = objective.advantages([[rewards[place] for place in order]])
        assert [once[place] for place in order] == list(again)


@given(rewards)
def test_the_leave_one_out_baseline_is_the_mean_of_the_others(group: list[float]) -> None:
    expected = [reward - fmean(group[:place] + group[place + 1 :]) for place, reward in enumerate(group)]
    assert leave_one_out(group) == pytest.approx(expected, abs=1e-9)


@given(batches)
def test_whitening_normalises_centred_rewards_over_the_batch(batch: list[list[float]]) -> None:
    differences = [reward - fmean(group) for group in batch for reward in group]
    values = [value for group in whitened(batch, epsilon=0.5) for value in group]
    mean, spread = fmean(differences), stdev(differences)
    assert values == pytest.approx([(value - mean) / (spread + 0.5) for value in differences], abs=1e-9)


@given(st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=8))
def test_responses_without_siblings_are_whitened_over_the_batch(found: list[float]) -> None:
    values = [value for (value,) in whitened([[reward] for reward in found], epsilon=0.5)]
    expected = [(reward - fmean(found)) / (stdev(found) + 0.5) for reward in found]
    assert values == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", LOCAL)
@given(batches)
def test_a_group_s_advantages_do_not_depend_on_the_batch_around_it(name: str, batch: list[list[float]]) -> None:
    alone = [OBJECTIVES[name].advantages([group])[0] for group in batch]
    assert OBJECTIVES[name].advantages(batch) == alone


def test_whitening_alone_depends_on_the_whole_batch() -> None:
    batch = [[0.0, 1.0], [0.0, 10.0]]
    alone = [whitened([group], epsilon=1e-6)[0] for group in batch]
    assert whitened(batch, epsilon=1e-6) != alone
    assert WHOLE_BATCH == ["ReinforcePlusPlus"]
