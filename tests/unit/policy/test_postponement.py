"""Bounded postponement: which draws a round must insist on so that none is put off more than X times."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.policy.postponement import can_keep, num_due


@pytest.mark.parametrize(
    ("postponements", "num_groups", "max_postponements", "due"),
    [
        ([], 2, 1, 0),
        ([0, 0, 0, 0], 2, 1, 2),
        ([0, 0, 0], 2, 1, 1),
        ([0, 0], 2, 1, 0),
        ([1], 2, 1, 1),
        ([1, 0, 0], 2, 1, 1),
        ([0, 1, 1], 2, 1, 2),
        ([0] * 6, 2, 2, 2),
        ([2, 1, 1, 0], 2, 2, 1),
        ([1, 1, 1, 1], 2, 2, 2),
        ([1, 1, 1], 2, 2, 1),
        ([0, 0], 2, 0, 2),
    ],
    ids=[
        "nothing waits",
        "four fit into two rounds only if each takes two",
        "three: this round takes one, the next two",
        "the next round takes both",
        "no slack left",
        "one without slack, the others fit into the next round",
        "two without slack",
        "six fill three rounds",
        "one without slack, two into the next round, one into the one after",
        "four with one round of slack: two now",
        "three with one round of slack: one now",
        "nothing may be put off",
    ],
)
def test_a_round_insists_on_what_would_not_fit_later(
    postponements: list[int], num_groups: int, max_postponements: int, due: int
) -> None:
    assert num_due(postponements, num_groups, max_postponements) == due


@pytest.mark.parametrize(
    ("postponements", "possible"),
    [([1, 1, 0, 0], True), ([1, 1, 1], False), ([0] * 5, False), ([2], False)],
    ids=["full", "three are due at once", "more than the rounds take", "too late already"],
)
def test_what_cannot_be_kept_is_known_beforehand(postponements: list[int], possible: bool) -> None:
    assert can_keep(postponements, num_groups=2, max_postponements=1) is possible


def test_n_times_x_plus_one_draws_are_as_many_as_the_bound_bears() -> None:
    assert can_keep([0] * 9, num_groups=3, max_postponements=2)
    assert not can_keep([0] * 10, num_groups=3, max_postponements=2)


def brute_force(postponements: Sequence[int], num_groups: int, max_postponements: int) -> int:
    """The fewest draws, the oldest first, that this round can take so that earliest-deadline-first meets the rest."""
    oldest = sorted(postponements, reverse=True)
    for due in range(len(oldest) + 1):
        left = [count + 1 for count in oldest[due:]]
        while left and max(left) <= max_postponements:
            left = [count + 1 for count in left[num_groups:]]
        if not left:
            return due
    raise AssertionError("taking all leaves nothing")


@given(st.integers(1, 4), st.integers(0, 4), st.data())
def test_it_is_the_fewest_that_keep_every_deadline(
    num_groups: int, max_postponements: int, data: st.DataObject
) -> None:
    counts = st.lists(st.integers(0, max_postponements), max_size=num_groups * (max_postponements + 1))
    postponements = data.draw(counts.filter(lambda some: can_keep(some, num_groups, max_postponements)))
    assert num_due(postponements, num_groups, max_postponements) == brute_force(
        postponements, num_groups, max_postponements
    )


@given(st.integers(1, 4), st.integers(0, 4), st.integers(1, 20), st.randoms(use_true_random=False), st.data())
def test_the_bound_is_kept_for_ever_however_quick_the_others_are(
    num_groups: int, max_postponements: int, num_rounds: int, rng: object, data: st.DataObject
) -> None:
    """Beside those that are due, an adversary chooses; every round is filled up with fresh draws."""
    most = num_groups * (max_postponements + 1)
    waiting: list[int] = []
    for _ in range(num_rounds):
        waiting = sorted([*waiting, *[0] * (most - len(waiting))], reverse=True)
        due = num_due(waiting, num_groups, max_postponements)
        assert due <= num_groups
        rest = waiting[due:]
        for _ in range(num_groups - due):
            rest.pop(data.draw(st.integers(0, len(rest) - 1)))
        waiting = [count + 1 for count in rest]
        assert all(count <= max_postponements for count in waiting)
