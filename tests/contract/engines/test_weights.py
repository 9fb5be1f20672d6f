"""Published weights: what an engine acknowledges it serves, and nothing of older weights remains."""

import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from longshore_runtime.backends.engine_protocol import Completion, load_weights
from longshore_runtime.backends.weight_sender import WeightSender
from longshore_runtime.weights.buckets import buckets, checksums, combined_checksum
from longshore_runtime.weights.shared import SharedBucket
from longshore_runtime.weights.slices import Weights
from tests.contract.engines.harness import BUCKET_BYTES, SMALL_BUCKET_BYTES, Harness, request, values

LONG_PROMPT = tuple(range(10, 100))


def test_the_answer_to_new_weights_is_their_checksum(harness: Harness) -> None:
    weights = harness.other_weights()
    parts = list(buckets(weights.items(), BUCKET_BYTES))
    assert len(parts) > 3
    assert harness.publish(1, weights) == combined_checksum(checksums(part) for part in parts)
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

    load_weights(harness.engine, watched(), 1)
    assert len(held) > 3


def test_other_weights_sample_other_responses_also_behind_a_cached_prompt(harness: Harness) -> None:
    (old,) = harness.finish([request(LONG_PROMPT, temperature=0.0)])
    harness.publish(1, harness.other_weights())
    (new,) = harness.finish([request(LONG_PROMPT, temperature=0.0)])
    assert new.trajectory.log_probs.tolist() != old.trajectory.log_probs.tolist()
    harness.publish(2)
    (again,) = harness.finish([request(LONG_PROMPT, temperature=0.0)])
    assert values(again) == values(old)


def test_parameters_that_are_larger_than_a_bucket_arrive_whole(harness: Harness) -> None:
    weights = harness.other_weights()
    whole = load_weights(harness.engine, [weights], 1)
    (expected,) = harness.finish([request(LONG_PROMPT, temperature=0.0)])
    parts = list(buckets(weights.items(), SMALL_BUCKET_BYTES))
    assert sum("model.embed_tokens.weight" in part for part in parts) > 2
    ways = [
        lambda: load_weights(harness.engine, parts, 3),
        lambda: harness.publish_shared(3, weights, bucket_bytes=SMALL_BUCKET_BYTES),
    ]
    for publish in ways:
        harness.publish(2)
        assert publish() == whole, "the checksum does not depend on the buckets"
        (actual,) = harness.finish([request(LONG_PROMPT, temperature=0.0)])
        assert values(actual) == values(expected)


@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_slice_that_does_not_come_leaves_an_engine_without_weights(harness: Harness, place: int) -> None:
    others = dict(harness.weights)
    name = "model.embed_tokens.weight"
    slices = list(buckets([(name, others.pop(name))], SMALL_BUCKET_BYTES))
    del slices[place]
    with pytest.raises(ValueError, match=f"lack values of 1 parameters, first '{name}'"):
        load_weights(harness.engine, [others, *slices], 1)
    assert harness.engine.stats().policy_version == -1


def test_no_request_is_taken_between_the_last_bucket_and_the_word_to_serve(harness: Harness) -> None:
    harness.engine.begin_weights()
    with pytest.raises(AssertionError, match="finish_weights comes first"):
        harness.engine.serve(1)
    harness.engine.load_bucket(harness.weights)
    harness.engine.finish_weights()
    assert harness.engine.stats().policy_version == -1
    with pytest.raises(AssertionError, match="weights that were published"):
        harness.engine.add([request()])
    harness.engine.serve(1)
    assert harness.engine.stats().policy_version == 1
    with pytest.raises(AssertionError, match="finish_weights comes first"):
        harness.engine.serve(2)


def test_weights_that_begin_again_forget_those_that_did_not_end(harness: Harness) -> None:
    first, *_ = buckets(harness.other_weights().items(), BUCKET_BYTES)
    harness.engine.begin_weights()
    harness.engine.load_bucket(first)
    assert harness.engine.stats().policy_version == -1
    (expected,) = published_and_sampled(harness, 1)
    (actual,) = published_and_sampled(harness, 2)
    assert values(actual) == values(expected)


def test_shared_memory_that_changes_before_it_is_read_is_noticed(harness: Harness) -> None:
    named = ((name, torch.tensor(values), None) for name, values in harness.weights.items())
    sender = WeightSender(named, torch.device("cpu"), 2 * BUCKET_BYTES)
    part = sender.fill()
    assert part is not None
    with Path(part.buffer.file).open("r+b") as file:
        file.write(b"\x01")
    harness.engine.begin_weights()
    with pytest.raises(ValueError, match=r"hold other values of '.*' than were written"):
        harness.engine.load_bucket(SharedBucket((part,)))
    sender.close()
    assert not Path(part.buffer.file).exists()


def published_and_sampled(harness: Harness, policy_version: int) -> list[Completion]:
    """With the weights of the checkpoint."""
    harness.publish(policy_version)
    return harness.finish([request(LONG_PROMPT, temperature=0.0)])


def test_weights_do_not_change_while_something_runs(harness: Harness) -> None:
    harness.engine.add([request()])
    with pytest.raises(AssertionError, match="nothing runs"):
        harness.publish(1)


def test_a_woken_engine_samples_as_before(harness: Harness) -> None:
    (before,) = harness.finish([request(LONG_PROMPT, temperature=0.0)])
    harness.engine.sleep()
    harness.engine.wake()
    (after,) = harness.finish([request(LONG_PROMPT, temperature=0.0)])
    assert before.trajectory == after.trajectory


def test_a_sleeping_engine_takes_no_requests(harness: Harness) -> None:
    harness.engine.sleep()
    with pytest.raises(AssertionError, match="sleeping"):
        harness.engine.add([request()])
    harness.engine.wake()


def test_a_parameter_that_comes_twice_leaves_an_engine_without_weights(harness: Harness) -> None:
    part = next(buckets(harness.weights.items(), BUCKET_BYTES))
    with pytest.raises(ValueError, match="parameters twice"):
        load_weights(harness.engine, iter([part, part]), 1)
    assert harness.engine.stats().policy_version == -1
    with pytest.raises(AssertionError, match="weights that were published"):
        harness.engine.add([request()])


def test_weights_rounded_by_the_trainer_sample_as_those_that_the_engine_rounds(narrow_vllm: Harness) -> None:
    weights = narrow_vllm.other_weights()
    narrow_vllm.publish(1, weights)
    (expected,) = narrow_vllm.finish([request(LONG_PROMPT, temperature=0.0)])
    narrow_vllm.publish(2)
    assert narrow_vllm.engine.begin_weights(), "it holds bfloat16, so it is sent half of the bytes"
    narrow_vllm.publish_shared(3, weights)
    (actual,) = narrow_vllm.finish([request(LONG_PROMPT, temperature=0.0)])
    assert values(actual) == values(expected)
