"""What racing selects for: accepted responses against all that were started, by difficulty."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.policy.selection_bias import (
    RewardRange,
    Selected,
    StartedGroup,
    selection_bias,
    share_shorter_again,
)

groups = st.builds(
    StartedGroup,
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.lists(st.integers(1, 100), min_size=1, max_size=4),
    st.lists(st.integers(0, 100), max_size=4),
)


def test_without_speculation_nothing_is_selected() -> None:
    bias = selection_bias([StartedGroup([1.0, 0.0], [10, 30], [])])
    assert bias.overall == Selected(num_groups=1, mean_reward=0.5, accepted_tokens=20, started_tokens=20)
    assert bias.overall.length_ratio == 1.0


def test_the_first_of_more_responses_are_the_shorter_ones() -> None:
    """Accepted 10 and 20, cut off at 20 and 30: 15 tokens on average of 20."""
    bias = selection_bias([StartedGroup([1.0, 1.0], [10, 20], [20, 30])])
    assert (bias.overall.accepted_tokens, bias.overall.started_tokens) == (15, 20)
    assert bias.overall.length_ratio == 0.75


def test_prompts_are_distinguished_by_the_reward_of_their_accepted_responses() -> None:
    hard, middle, easy = (
        StartedGroup([0.0, 0.2], [40], [60]),
        StartedGroup([0.5, 0.5], [20], [20]),
        StartedGroup([1.0, 1.0], [10], [10]),
    )
    bias = selection_bias([hard, middle, easy])
    assert [selected.num_groups for selected in bias.by_difficulty] == [1, 0, 1, 1]
    assert [selected.length_ratio for selected in bias.by_difficulty] == [0.8, 1.0, 1.0, 1.0]
    assert bias.by_difficulty[0].mean_reward == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("seen", "rewards", "num_groups"),
    [
        ([10.0], [5.0], [0, 0, 1, 0]),
        ([-1.0, 1.0], [1.0, -1.0], [0, 0, 1, 0]),
        ([-1.0], [-1.0], [1, 0, 0, 0]),
        ([-1.0], [1.0, 1.0, 1.0, -1.0], [0, 0, 0, 1]),
        ([0.5], [0.4], [0, 1, 0, 0]),
    ],
)
def test_difficulties_are_quarters_of_the_range_of_all_rewards_so_far(
    seen: list[float], rewards: list[float], num_groups: list[int]
) -> None:
    bias = selection_bias([StartedGroup(rewards, [1], [])], RewardRange().with_rewards(seen))
    assert [selected.num_groups for selected in bias.by_difficulty] == num_groups


def test_responses_that_are_shorter_than_where_they_were_cut_off_before_are_counted() -> None:
    draw, other = Draw(0, 3), Draw(0, 4)
    cut = {ResponseId(draw, 0): 10, ResponseId(draw, 1): 10, ResponseId(draw, 2): 7, ResponseId(other, 0): 99}
    now = {ResponseId(draw, 0): 9, ResponseId(draw, 1): 10, ResponseId(draw, 2): 30, ResponseId(draw, 3): 1}
    assert share_shorter_again(cut, now) == pytest.approx(1 / 3)
    assert share_shorter_again(cut, {ResponseId(draw, 3): 1}) is None


@given(groups)
def test_cutting_off_longer_responses_shows_as_a_ratio_below_one(one: StartedGroup) -> None:
    longest = max(one.accepted_tokens)
    cut_off = StartedGroup(one.rewards, one.accepted_tokens, [longest + 1])
    assert selection_bias([cut_off]).overall.length_ratio < 1.0
