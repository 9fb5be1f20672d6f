"""Draws of several data sets: in the proportions that were asked for, each prompt once per epoch, whatever restarts."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.policy.draws import Draw, DrawCursor, MixedDraws, Share
from longshore.policy.round_policy import BatchShape
from longshore.policy.synchronous import Synchronous

SHARES = st.lists(
    st.tuples(st.integers(1, 20), st.floats(0.01, 100)), min_size=1, max_size=5
).map(lambda sets: [Share(f"set-{number}", *one) for number, one in enumerate(sets)])  # fmt: skip


def set_of(draw: Draw, shares: list[Share]) -> str:
    """Name of the data set of a draw."""
    first = 0
    for share in shares:
        if draw.index < first + share.num_prompts:
            return share.name
        first += share.num_prompts
    raise AssertionError(f"{draw} is of no data set")


@given(SHARES, st.integers(1, 300), st.integers(0, 9))
def test_every_prefix_of_the_draws_has_the_shares_as_nearly_as_whole_prompts_allow(
    shares: list[Share], num: int, seed: int
) -> None:
    counts = Counter(set_of(draw, shares) for draw in MixedDraws(shares, seed).take(num))
    total = sum(share.weight for share in shares)
    for share in shares:
        assert abs(counts[share.name] - num * share.weight / total) <= max(1, len(shares) - 1)


@given(SHARES, st.integers(1, 300), st.integers(0, 9))
def test_each_data_set_goes_once_through_its_prompts_in_every_epoch(shares: list[Share], num: int, seed: int) -> None:
    draws = MixedDraws(shares, seed).take(num)
    assert len(set(draws)) == num
    for share in shares:
        own = [draw for draw in draws if set_of(draw, shares) == share.name]
        per_epoch = Counter(draw.epoch for draw in own)
        assert [per_epoch[epoch] for epoch in range(len(own) // share.num_prompts)] == [share.num_prompts] * (
            len(own) // share.num_prompts
        )


@given(SHARES, st.lists(st.integers(0, 40), max_size=6), st.integers(0, 9))
def test_restarts_neither_lose_nor_repeat_a_draw(shares: list[Share], parts: list[int], seed: int) -> None:
    undisturbed = MixedDraws(shares, seed).take(sum(parts))
    draws: list[Draw] = []
    state = json.dumps(MixedDraws(shares, seed).export_state())
    for num in parts:
        cursor = MixedDraws(shares, seed)
        cursor.load_state(json.loads(state))
        draws += cursor.take(num)
        state = json.dumps(cursor.export_state())
    assert tuple(draws) == undisturbed


def test_a_batch_has_the_shares() -> None:
    shares = [Share("maths", 5, 3.0), Share("code", 4, 1.0)]
    start = Synchronous(BatchShape(4, 1), MixedDraws(shares, seed=1)).start_round()
    batch = [response.draw for response in start.decision.launch]
    assert Counter(set_of(draw, shares) for draw in batch) == {"maths": 3, "code": 1}


def test_the_first_of_equals_comes_first_and_seeds_change_the_order_of_prompts_alone() -> None:
    shares = [Share("a", 50, 1.0), Share("b", 50, 1.0)]
    one, other = MixedDraws(shares, 1).take(20), MixedDraws(shares, 2).take(20)
    assert [set_of(draw, shares) for draw in one] == ["a", "b"] * 10 == [set_of(draw, shares) for draw in other]
    assert one != other


@pytest.mark.parametrize(
    ("shares", "seed"),
    [
        ([Share("a", 3, 1.0), Share("b", 3, 1.0)], 1),
        ([Share("a", 3, 1.0), Share("b", 2, 2.0)], 1),
        ([Share("a", 3, 1.0), Share("c", 2, 1.0)], 1),
        ([Share("a", 3, 1.0), Share("b", 2, 1.0)], 2),
    ],
)
def test_a_checkpoint_of_another_mix_is_refused(shares: list[Share], seed: int) -> None:
    state = MixedDraws([Share("a", 3, 1.0), Share("b", 2, 1.0)], 1).export_state()
    with pytest.raises(
        ValueError, match=r"^data\.sources: .* restore them, or start a new job with another storage\.output$"
    ):
        MixedDraws(shares, seed).load_state(state)


def test_a_mix_and_a_single_data_set_do_not_read_each_others_position() -> None:
    mixed, single = MixedDraws([Share("a", 3, 1.0)], 1), DrawCursor(3, 1)
    with pytest.raises(ValueError, match=r"^data: it has 3 prompts now and had None"):
        single.load_state(mixed.export_state())
    with pytest.raises(ValueError, match=r"^data\.sources: "):
        mixed.load_state(single.export_state())
