"""Published weights: what an engine acknowledges it serves, and nothing of older weights remains."""

import pytest

from longshore_runtime.weights import checksum
from tests.contract.engines.harness import Harness, request

LONG_PROMPT = tuple(range(10, 100))


def test_the_answer_to_new_weights_is_their_checksum(harness: Harness) -> None:
    weights = harness.other_weights()
    assert harness.publish(1, weights) == checksum(weights)
    assert harness.engine.stats().policy_version == 1


def test_other_weights_sample_other_responses_also_behind_a_cached_prompt(harness: Harness) -> None:
    (old,) = harness.finish([request(LONG_PROMPT, temperature=0.0)])
    harness.publish(1, harness.other_weights())
    (new,) = harness.finish([request(LONG_PROMPT, temperature=0.0)])
    assert new.runs[0].log_probs != old.runs[0].log_probs
    harness.publish(2)
    (again,) = harness.finish([request(LONG_PROMPT, temperature=0.0)])
    assert (again.tokens, again.log_probs) == (old.tokens, old.log_probs)


def test_weights_do_not_change_while_something_runs(harness: Harness) -> None:
    harness.engine.add([request()])
    with pytest.raises(AssertionError, match="nothing runs"):
        harness.publish(1)


def test_a_woken_engine_samples_as_before(harness: Harness) -> None:
    (before,) = harness.finish([request(LONG_PROMPT, temperature=0.0)])
    harness.engine.sleep()
    harness.engine.wake()
    (after,) = harness.finish([request(LONG_PROMPT, temperature=0.0)])
    assert before.runs == after.runs


def test_a_sleeping_engine_takes_no_requests(harness: Harness) -> None:
    harness.engine.sleep()
    with pytest.raises(AssertionError, match="sleeping"):
        harness.engine.add([request()])
    harness.engine.wake()
