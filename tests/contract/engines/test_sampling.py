"""What every engine samples, and when a response ends."""

import dataclasses

import pytest

from longshore_runtime.backends.engine_protocol import FinishReason
from tests.contract.engines.harness import MAX_NUM_SEQS, NUM_KV_BLOCKS, PROMPT, Harness, request, requests


def test_a_response_ends_with_the_end_token_or_at_its_limit(harness: Harness) -> None:
    ended = harness.finish(requests(32, max_tokens=120))
    assert {completion.finish_reason for completion in ended} == {FinishReason.STOP, FinishReason.LENGTH}
    for completion in ended:
        *before, last = completion.trajectory.tokens.tolist()
        assert harness.eos_id not in before
        if completion.finish_reason is FinishReason.STOP:
            assert last == harness.eos_id
        else:
            assert last != harness.eos_id
            assert completion.num_tokens == 120


def test_a_response_that_ignores_its_end_has_exactly_its_limit(harness: Harness) -> None:
    endless = [dataclasses.replace(one, ignores_end=True) for one in requests(32, max_tokens=120)]
    ended = harness.finish(endless)
    assert {completion.finish_reason for completion in ended} == {FinishReason.LENGTH}
    assert {completion.num_tokens for completion in ended} == {120}


def test_every_token_has_a_log_probability_and_the_policy_version_that_sampled_it(harness: Harness) -> None:
    harness.publish(3)
    for completion in harness.finish(requests(4)):
        (run,) = completion.trajectory.runs
        assert run.policy_version == 3
        assert len(completion.trajectory.log_probs) == run.num_tokens > 0
        assert (completion.trajectory.log_probs <= 0).all()


def test_equal_seeds_sample_equal_responses(harness: Harness) -> None:
    first, second = harness.finish([request(seed=5)]), harness.finish([request(seed=5)])
    assert first[0].trajectory == second[0].trajectory


def test_other_seeds_sample_other_responses(harness: Harness) -> None:
    responses = {completion.trajectory.tokens.tobytes() for completion in harness.finish(requests(8))}
    assert len(responses) == 8


def test_without_temperature_the_seed_does_not_matter(harness: Harness) -> None:
    one, other = harness.finish([request(temperature=0.0, seed=1), request(temperature=0.0, seed=2)])
    assert one.trajectory.tokens.tolist() == other.trajectory.tokens.tolist()


def test_a_response_does_not_depend_on_what_runs_beside_it(harness: Harness) -> None:
    (alone,) = harness.finish([request(temperature=0.0)])
    (together, *_) = harness.finish([request(temperature=0.0), *requests(5)])
    assert alone.trajectory.tokens.tolist() == together.trajectory.tokens.tolist()


def test_requests_beyond_the_limit_wait_and_are_served(harness: Harness) -> None:
    harness.engine.add(requests(MAX_NUM_SEQS + 3, max_tokens=10))
    ended = harness.engine.step()
    stats = harness.engine.stats()
    assert stats.num_running + len(ended) == MAX_NUM_SEQS
    assert stats.num_waiting == 3
    assert len(ended) + len(harness.finish_rest()) == MAX_NUM_SEQS + 3


def test_the_step_in_which_a_response_ended_is_reported(harness: Harness) -> None:
    before = harness.engine.stats().num_steps
    short, long = request(max_tokens=2), request(max_tokens=9)
    ended = harness.finish([short, long])
    assert [completion.engine_step - before for completion in ended] == [2, 9]


def test_an_idle_engine_has_no_work(harness: Harness) -> None:
    assert not harness.engine.has_work()
    assert harness.engine.step() == []


def test_counters_grow_with_the_work(harness: Harness) -> None:
    before = harness.engine.stats()
    ended = harness.finish(requests(5))
    after = harness.engine.stats()
    assert after.num_tokens - before.num_tokens == sum(completion.num_tokens for completion in ended)
    assert after.num_steps - before.num_steps == max(completion.num_tokens for completion in ended)
    assert after.busy_s > before.busy_s
    assert (after.num_running, after.num_waiting) == (0, 0)


def test_preemptions_are_counted_and_lose_no_token(harness: Harness) -> None:
    before = harness.engine.stats().num_preemptions
    # Different prompts: equal ones would share their blocks.
    many = [request(range(10 + seed, 90 + seed), max_tokens=100, seed=seed) for seed in range(MAX_NUM_SEQS)]
    ended = harness.finish(many)
    assert harness.engine.stats().num_preemptions > before
    for completion in ended:
        assert completion.finish_reason is FinishReason.STOP or completion.num_tokens == 100


def test_the_use_of_the_kv_cache_is_reported(harness: Harness) -> None:
    harness.engine.add([request(range(10, 74), max_tokens=20)])
    harness.engine.step()
    used = harness.engine.stats().kv_usage
    assert 0.5 * 64 / harness.kv_block_tokens / 24 < used <= 1
    harness.finish_rest()


def test_a_partial_response_without_room_for_more_is_refused(harness: Harness) -> None:
    whole = harness.finish([request(max_tokens=5)])[0]
    with pytest.raises(ValueError, match="nothing to sample"):
        harness.engine.add([request(max_tokens=5, partial=whole.trajectory)])


def test_the_lengths_of_what_runs_and_waits_are_reported_with_partial_tokens(harness: Harness) -> None:
    kept = harness.abort_after(request(), 4).trajectory
    harness.engine.add(requests(MAX_NUM_SEQS - 1, max_tokens=2))
    harness.engine.add([request(partial=kept, max_tokens=60) for _ in range(2)])
    harness.engine.step()
    lengths = sorted(response.generated_tokens for response in harness.engine.live())
    assert lengths == [*[1] * (MAX_NUM_SEQS - 1), 4, 5], "one of the two resumed responses waits"
    assert {response.prompt_tokens for response in harness.engine.live()} == {len(PROMPT)}
    harness.finish_rest()
    assert harness.engine.live() == []


def test_the_capacity_of_the_kv_cache_is_reported(harness: Harness) -> None:
    assert harness.engine.stats().kv_capacity_tokens == NUM_KV_BLOCKS * harness.kv_block_tokens
