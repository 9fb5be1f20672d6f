"""Published weights: what an engine acknowledges it serves, and nothing of older weights remains."""

import weakref
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from longshore_runtime.types import Weights
from longshore_runtime.weights import buckets, checksum, combined_checksum
from tests.contract.engines.harness import BUCKET_BYTES, Harness, request

LONG_PROMPT = tuple(range(10, 100))


def test_the_answer_to_new_weights_is_their_checksum(harness: Harness) -> None:
    weights = harness.other_weights()
    parts = list(buckets(weights.items(), BUCKET_BYTES))
    assert len(parts) > 3
    assert harness.publish(1, weights) == combined_checksum(checksum(part) for part in parts)
    assert harness.engine.stats().policy_version == 1


class Bucket(dict[str, npt.NDArray[np.float32]]):
    """A bucket that can be watched."""


def test_buckets_are_asked_for_when_the_one_before_is_done_with(harness: Harness) -> None:
    held: list[weakref.ref[Bucket]] = []

    def watched() -> Iterator[Weights]:
        for part in buckets(harness.weights.items(), BUCKET_BYTES):
            assert all(bucket() is None for bucket in held)
            bucket = Bucket(part)
            held.append(weakref.ref(bucket))
            yield bucket
            del bucket

    harness.engine.load_weights(watched(), 1)
    assert len(held) > 3


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


def test_a_parameter_that_comes_twice_leaves_an_engine_without_weights(harness: Harness) -> None:
    part = next(buckets(harness.weights.items(), BUCKET_BYTES))
    with pytest.raises(ValueError, match="parameters twice"):
        harness.engine.load_weights(iter([part, part]), 1)
    assert harness.engine.stats().policy_version == -1
    with pytest.raises(AssertionError, match="weights that were published"):
        harness.engine.add([request()])
