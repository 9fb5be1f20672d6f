"""Group-relative advantages (DeepSeekMath, section 4.1)."""

from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.policy.advantages import group_advantages

rewards = st.lists(st.floats(-100, 100), min_size=2, max_size=32)


def test_rewards_are_divided_by_their_unbiased_deviation() -> None:
    assert group_advantages([0.0, 1.0, 1.0, 0.0], epsilon=0.0) == pytest.approx(
        [-0.866, 0.866, 0.866, -0.866], abs=1e-3
    )


def test_epsilon_is_added_to_the_deviation() -> None:
    assert group_advantages([0.0, 2.0], epsilon=1.0) == pytest.approx([-1 / (2**0.5 + 1), 1 / (2**0.5 + 1)])


@pytest.mark.parametrize("group", [[], [0.7], [0.1] * 3, [1.0] * 8])
def test_a_group_without_spread_gives_exactly_zero(group: list[float]) -> None:
    assert group_advantages(group, epsilon=1e-6) == (0.0,) * len(group)


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
