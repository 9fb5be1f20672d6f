"""Whose sums hold which samples."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.policy.streaming import SampleSums, StreamLedger, StreamSample, require_streamable, split


def samples(*num_tokens: int, zero_variance: tuple[int, ...] = ()) -> list[StreamSample]:
    """Samples of these tokens, of which 3 are the prompt."""
    return [
        StreamSample(ResponseId(Draw(0, index), 0), tokens - 3, tokens, has_gradient=index not in zero_variance)
        for index, tokens in enumerate(num_tokens)
    ]


def responses(*indices: int) -> list[ResponseId]:
    return [ResponseId(Draw(0, index), 0) for index in indices]


def test_each_replica_has_its_samples_and_the_rest_remains() -> None:
    ledger = StreamLedger()
    ledger.accept(samples(10, 20, 30, 40))
    ledger.hand_over(0, responses(1))
    ledger.hand_over(1, responses(3, 0))
    assert ledger.done_by(0) == SampleSums(num_samples=1, num_loss_tokens=17, num_tokens=20)
    assert ledger.done_by(1) == SampleSums(num_samples=2, num_loss_tokens=44, num_tokens=50)
    assert ledger.done_by(2) == SampleSums()
    assert [sample.response for sample in ledger.remaining] == responses(2)
    assert [ledger.replica_of(response) for response in responses(0, 1, 2)] == [1, 0, None]


def test_the_denominator_counts_zero_variance_samples_which_nobody_computes() -> None:
    ledger = StreamLedger()
    ledger.accept(samples(10, 20, 30, zero_variance=(1,)))
    assert ledger.total == SampleSums(num_samples=3, num_loss_tokens=51, num_tokens=60)
    assert [sample.response for sample in ledger.remaining] == responses(0, 2)


def test_nothing_is_accepted_twice() -> None:
    ledger = StreamLedger()
    ledger.accept(samples(10))
    with pytest.raises(AssertionError, match="response 0-0-0 accepted twice"):
        ledger.accept(samples(10))


def test_nothing_is_computed_twice() -> None:
    ledger = StreamLedger()
    ledger.accept(samples(10))
    ledger.hand_over(0, responses(0))
    with pytest.raises(AssertionError, match="response 0-0-0 is with replica 0"):
        ledger.hand_over(1, responses(0))


def test_nothing_is_computed_that_was_not_accepted() -> None:
    with pytest.raises(AssertionError, match="response 0-0-0 was never accepted"):
        StreamLedger().hand_over(0, responses(0))


def test_a_lost_replica_gives_its_samples_back() -> None:
    ledger = StreamLedger()
    ledger.accept(samples(10, 20, 30))
    ledger.hand_over(0, responses(2, 0))
    ledger.hand_over(1, responses(1))
    assert [sample.response for sample in ledger.replica_lost(0)] == responses(0, 2)
    assert [sample.response for sample in ledger.remaining] == responses(0, 2)
    assert ledger.done_by(0) == SampleSums()
    assert ledger.replica_lost(0) == ()
    ledger.hand_over(1, responses(0, 2))
    assert ledger.done_by(1) == ledger.total


def test_the_rest_goes_first_to_those_that_have_done_least() -> None:
    ledger = StreamLedger()
    ledger.accept(samples(100, 50, 40, 30, 20))
    ledger.hand_over(0, responses(0))
    shares = ledger.split_remaining([0, 1])
    assert {replica: [sample.num_tokens for sample in share] for replica, share in shares.items()} == {
        0: [20],
        1: [50, 40, 30],
    }


def test_ties_go_to_the_lower_response_and_the_lower_replica() -> None:
    shares = split(samples(10, 10, 10)[::-1], {1: 0, 0: 0})
    assert {replica: [sample.response for sample in share] for replica, share in shares.items()} == {
        0: responses(0, 2),
        1: responses(1),
    }


@settings(deadline=None)
@given(st.lists(st.integers(4, 500), max_size=40), st.lists(st.integers(0, 2_000), min_size=1, max_size=6))
def test_a_split_is_complete_and_even(num_tokens: list[int], done_tokens: list[int]) -> None:
    remaining = samples(*num_tokens)
    done = dict(enumerate(done_tokens))
    shares = split(remaining, done)
    assert sorted((sample for share in shares.values() for sample in share), key=lambda s: s.response) == remaining
    load = {replica: done[replica] + sum(sample.num_tokens for sample in share) for replica, share in shares.items()}
    for replica, share in shares.items():
        if share:
            assert load[replica] - share[-1].num_tokens <= min(load.values())
    shuffled = random.Random(len(num_tokens)).sample(remaining, len(remaining))
    assert split(shuffled, done) == shares


@settings(deadline=None)
@given(st.lists(st.integers(4, 500), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_whatever_is_lost_the_sums_of_the_replicas_add_up_to_the_total(
    num_tokens: list[int], rng: random.Random
) -> None:
    ledger = StreamLedger()
    pending = samples(*num_tokens)
    for _ in range(40):
        if pending and rng.random() < 0.5:
            ledger.accept([pending.pop()])
        if ledger.remaining and rng.random() < 0.6:
            ledger.hand_over(rng.randrange(3), [rng.choice(ledger.remaining).response])
        if rng.random() < 0.1:
            ledger.replica_lost(rng.randrange(3))
    ledger.accept(pending)
    for replica, share in ledger.split_remaining(range(3)).items():
        ledger.hand_over(replica, [sample.response for sample in share])
    assert ledger.remaining == ()
    done = [ledger.done_by(replica) for replica in range(3)]
    assert sum(sums.num_samples for sums in done) == ledger.total.num_samples == len(num_tokens)
    assert sum(sums.num_tokens for sums in done) == ledger.total.num_tokens == sum(num_tokens)
    assert sum(sums.num_loss_tokens for sums in done) == ledger.total.num_loss_tokens


def test_a_loss_that_needs_the_whole_batch_is_refused() -> None:
    require_streamable("GRPO", needs_whole_batch=False)
    with pytest.raises(ValueError, match=r"algorithm.name: ReinforcePlusPlus needs the whole batch"):
        require_streamable("ReinforcePlusPlus", needs_whole_batch=True)
