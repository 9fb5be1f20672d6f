"""Handover to the trainer: U groups make an optimizer step, in the order in which they became trainable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.policy.draws import Draw
from longshore.policy.handover import Batch, HandoverQueue, TrainableGroup, feasible_prefix


def group(index: int, num_tokens: int = 10) -> TrainableGroup:
    return TrainableGroup(Draw(0, index), num_tokens)


def batch(*indices: int, ends_update: bool = True) -> Batch:
    return Batch(tuple(Draw(0, index) for index in indices), ends_update)


def test_the_first_u_groups_make_an_update_whatever_their_order_in_the_data() -> None:
    handover = HandoverQueue(update_sizes=(2,), max_tokens_per_batch=100)
    assert [handover.add(group(index)) for index in (3, 0, 2, 1)] == [
        (),
        (batch(3, 0),),
        (),
        (batch(2, 1),),
    ]
    assert handover.round_ended() == ()


def test_the_last_update_of_a_round_may_be_smaller() -> None:
    handover = HandoverQueue(update_sizes=(2,), max_tokens_per_batch=100)
    for index in (0, 1, 2):
        handover.add(group(index))
    assert handover.round_ended() == (batch(2),)
    assert handover.round_ended() == ()


@pytest.mark.parametrize("sizes", [(1, 2), (1, 3, 2)])
def test_updates_have_sizes_of_their_own_and_the_last_one_holds_from_then_on(sizes: tuple[int, ...]) -> None:
    handover = HandoverQueue(update_sizes=sizes, max_tokens_per_batch=100)
    batches = [batch for index in range(10) for batch in handover.add(group(index))] + [*handover.round_ended()]
    made = [len(batch.draws) for batch in batches]
    expected = [*sizes, *[sizes[-1]] * 10]
    assert made[:-1] == expected[: len(made) - 1]
    assert sum(made) == 10


def test_an_update_goes_to_the_trainer_in_batches_that_fit_and_steps_once() -> None:
    handover = HandoverQueue(update_sizes=(4,), max_tokens_per_batch=25)
    for index, num_tokens in enumerate((10, 10)):
        handover.add(group(index, num_tokens))
    handover.add(group(2, 20))
    assert handover.add(group(3, 5)) == (batch(0, 1, ends_update=False), batch(2, 3))


def test_a_group_beyond_the_budget_goes_alone() -> None:
    handover = HandoverQueue(update_sizes=(3,), max_tokens_per_batch=25)
    handover.add(group(0, 5))
    handover.add(group(1, 60))
    assert handover.add(group(2, 5)) == (
        batch(0, ends_update=False),
        batch(1, ends_update=False),
        batch(2),
    )


@pytest.mark.parametrize(
    ("num_tokens", "count"),
    [([10, 10, 10], 2), ([25, 1], 1), ([26], 1), ([30, 1], 1), ([10, 15, 1], 2), ([1, 30, 1], 1)],
    ids=[
        "two fit",
        "exactly full",
        "too large alone",
        "too large in front",
        "exactly full with two",
        "too large behind",
    ],
)
def test_the_feasible_prefix_is_the_longest_that_fits_and_never_empty(num_tokens: list[int], count: int) -> None:
    assert feasible_prefix(num_tokens, budget=25) == count


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=30),
    st.integers(1, 8),
    st.integers(1, 100),
)
def test_every_group_is_handed_over_once_in_order_in_updates_of_u(
    num_tokens: list[int], groups_per_update: int, budget: int
) -> None:
    handover = HandoverQueue((groups_per_update,), budget)
    batches: list[Batch] = []
    for index, tokens in enumerate(num_tokens):
        batches += handover.add(group(index, tokens))
    batches += handover.round_ended()
    assert [draw.index for one in batches for draw in one.draws] == list(range(len(num_tokens)))
    assert all(len(one.draws) == 1 or sum(num_tokens[draw.index] for draw in one.draws) <= budget for one in batches)
    updates: list[int] = [0]
    for one in batches:
        updates[-1] += len(one.draws)
        if one.ends_update:
            updates.append(0)
    assert updates.pop() == 0, "the last batch ends an update"
    assert all(size == groups_per_update for size in updates[:-1])
    assert 0 < updates[-1] <= groups_per_update
