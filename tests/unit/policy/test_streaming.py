"""Whose sums hold which samples."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.policy.streaming import MAX_PENDING_PARTS, SamplePart, StreamLedger, StreamSample, split


def group(draw: int, *num_tokens: int) -> list[StreamSample]:
    """Samples of these tokens."""
    return [StreamSample(ResponseId(Draw(0, draw), index), tokens) for index, tokens in enumerate(num_tokens)]


def ids(samples: Sequence[StreamSample]) -> tuple[ResponseId, ...]:
    return tuple(sample.response for sample in samples)


def ledger_of(*groups: list[StreamSample]) -> StreamLedger:
    ledger = StreamLedger()
    for one in groups:
        ledger.accept(one)
    return ledger


def test_groups_go_in_order_to_the_awake_replica_that_has_least_to_do() -> None:
    first, second, third = group(0, 10, 10), group(1, 50), group(2, 5)
    ledger = ledger_of(first, second, third)
    assert ledger.next_parts([1, 2]) == (
        SamplePart(1, ids(first)),
        SamplePart(2, ids(second)),
        SamplePart(1, ids(third)),
    )
    assert (ledger.pending_tokens(1), ledger.pending_tokens(2)) == (25, 50)
    assert ledger.replica_of == dict(zip(ids([*first, *second, *third]), (1, 1, 2, 1), strict=True))


def test_a_replica_has_two_parts_in_hand_and_gets_another_when_one_is_computed() -> None:
    groups = [group(number, 10) for number in range(4)]
    ledger = ledger_of(*groups)
    assert [part.responses for part in ledger.next_parts([0])] == [ids(groups[0]), ids(groups[1])]
    assert ledger.next_parts([0]) == ()
    ledger.computed(0)
    assert ledger.next_parts([0]) == (SamplePart(0, ids(groups[2])),)


def test_what_a_replica_computes_counts_by_half_and_what_waits_behind_it_does_not() -> None:
    ledger = ledger_of(group(0, 10, 10), group(1, 30), group(2, 100))
    assert ledger.computed_tokens == 0
    ledger.next_parts([0])
    assert ledger.computed_tokens == 10
    ledger.computed(0)
    assert ledger.computed_tokens == 20 + 15
    ledger.computed(0)
    assert ledger.computed_tokens == 50
    ledger.lost()
    assert ledger.computed_tokens == 0


def test_nothing_goes_to_a_replica_that_sleeps() -> None:
    assert ledger_of(group(0, 10)).next_parts([]) == ()


def test_at_the_end_the_rest_goes_first_to_those_that_have_least_in_hand() -> None:
    early, rest = group(0, 100), group(1, 50, 40, 30, 20)
    ledger = ledger_of(early)
    ledger.next_parts([0])
    ledger.accept(rest)
    assert ledger.last_parts([0, 1]) == (SamplePart(0, ids(rest[3:])), SamplePart(1, ids(rest[:3])))
    assert ledger.last_parts([0, 1]) == ()


def test_what_a_replica_has_computed_does_not_hold_its_share_of_the_rest_back() -> None:
    ledger = ledger_of(group(0, 100))
    ledger.next_parts([0])
    ledger.computed(0)
    rest = group(1, 50, 50)
    ledger.accept(rest)
    assert ledger.last_parts([0, 1]) == (SamplePart(0, ids(rest[:1])), SamplePart(1, ids(rest[1:])))


def test_nothing_is_accepted_twice() -> None:
    with pytest.raises(AssertionError, match="response 0-0-0 accepted twice"):
        ledger_of(group(0, 10), group(0, 10))


def test_a_lost_world_gives_everything_back() -> None:
    first, second = group(0, 10, 20), group(1, 30)
    ledger = ledger_of(first, second)
    ledger.next_parts([0])
    ledger.lost()
    assert (ledger.replica_of, ledger.pending_tokens(0)) == ({}, 0)
    parts = ledger.last_parts([0, 1])
    assert sorted(response for part in parts for response in part.responses) == sorted(ids([*first, *second]))


def test_ties_go_to_the_lower_response_and_the_lower_replica() -> None:
    samples = [group(draw, 10)[0] for draw in range(3)]
    assert split(samples[::-1], {1: 0, 0: 0}) == {0: (samples[0], samples[2]), 1: (samples[1],)}


@settings(deadline=None)
@given(st.lists(st.integers(4, 500), max_size=40), st.lists(st.integers(0, 2_000), min_size=1, max_size=6))
def test_a_split_is_complete_and_even(num_tokens: list[int], in_hand: list[int]) -> None:
    samples = group(0, *num_tokens)
    before = dict(enumerate(in_hand))
    shares = split(samples, before)
    assert sorted((one for share in shares.values() for one in share), key=lambda one: one.response) == samples
    load = {replica: before[replica] + sum(one.num_tokens for one in share) for replica, share in shares.items()}
    for replica, share in shares.items():
        if share:
            assert load[replica] - share[-1].num_tokens <= min(load.values())
    assert split(random.Random(len(num_tokens)).sample(samples, len(samples)), before) == shares


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(4, 500), min_size=1, max_size=4), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_whatever_wakes_or_is_lost_every_sample_ends_in_the_sums_of_one_replica(
    groups: list[list[int]], rng: random.Random
) -> None:
    ledger, awake, in_hand = StreamLedger(), set[int](), dict.fromkeys(range(3), 0)
    pending = [group(draw, *tokens) for draw, tokens in enumerate(groups)]
    given_to: dict[ResponseId, int] = {}

    def take(parts: tuple[SamplePart, ...]) -> None:
        for part in parts:
            assert not given_to.keys() & set(part.responses), "computed twice"
            given_to.update(dict.fromkeys(part.responses, part.replica))
            in_hand[part.replica] += 1

    while pending:
        match rng.randrange(5):
            case 0 | 1:
                ledger.accept(pending.pop())
            case 2:
                awake.add(rng.randrange(3))
            case 3 if busy := [replica for replica, parts in in_hand.items() if parts]:
                replica = rng.choice(busy)
                ledger.computed(replica)
                in_hand[replica] -= 1
            case 4 if rng.random() < 0.2:
                ledger.lost()
                given_to.clear()
                in_hand = dict.fromkeys(range(3), 0)
        parts = ledger.next_parts(awake)
        assert {part.replica for part in parts} <= awake
        take(parts)
        assert max(in_hand.values()) <= MAX_PENDING_PARTS
    take(ledger.last_parts(range(3)))
    assert ledger.replica_of == given_to
    assert len(given_to) == sum(map(len, groups))
