"""Aborted responses keep what they have, and later requests continue from there."""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from longshore.api.rollout import EngineBackend, EngineSettings
from longshore_runtime.backends.engine_protocol import FinishReason
from longshore_runtime.backends.engine_spec import EngineSpec
from longshore_runtime.backends.engines import create_engine
from tests.contract.engines.harness import MAX_NUM_SEQS, PROMPT, Harness, request, requests
from tests.contract.trainers.tiny_models import MIXTURES, build


def test_an_aborted_response_keeps_its_tokens_and_log_probabilities(harness: Harness) -> None:
    (whole,) = harness.finish([request(max_tokens=30)])
    aborted = harness.abort_after(request(max_tokens=30), num_tokens=6)
    assert aborted.trajectory.tokens.tolist() == whole.trajectory.tokens.tolist()[:6]
    assert aborted.trajectory.log_probs.tolist() == whole.trajectory.log_probs.tolist()[:6]
    assert not harness.engine.has_work()


def test_a_request_that_waits_is_aborted_without_tokens(harness: Harness) -> None:
    many = requests(MAX_NUM_SEQS + 1)
    harness.engine.add(many)
    harness.engine.step()
    (aborted,) = harness.engine.abort([many[-1].request_id])
    assert aborted.trajectory.runs == ()
    assert aborted.finish_reason is FinishReason.ABORT


def test_unknown_and_ended_requests_are_ignored_by_abort(harness: Harness) -> None:
    ended = request(max_tokens=2)
    harness.finish([ended])
    assert harness.engine.abort(["never seen", ended.request_id]) == []


def test_others_go_on_when_one_is_aborted(harness: Harness) -> None:
    stays, goes = request(temperature=0.0, max_tokens=20), request(max_tokens=20)
    (alone,) = harness.finish([request(temperature=0.0, max_tokens=20)])
    harness.engine.add([stays, goes])
    harness.engine.step()
    harness.engine.abort([goes.request_id])
    (completion,) = harness.finish_rest()
    assert completion.request_id == stays.request_id
    assert completion.trajectory.tokens.tolist() == alone.trajectory.tokens.tolist()


def test_a_resumed_greedy_response_equals_the_uninterrupted_one(harness: Harness) -> None:
    (whole,) = harness.finish([request(temperature=0.0, max_tokens=30)])
    aborted = harness.abort_after(request(temperature=0.0, max_tokens=30), num_tokens=10)
    (resumed,) = harness.finish([request(temperature=0.0, max_tokens=30, partial=aborted.trajectory)])
    assert resumed.trajectory.tokens.tolist() == whole.trajectory.tokens.tolist()


def test_a_resumed_response_keeps_its_runs_with_their_policy_versions(harness: Harness) -> None:
    aborted = harness.abort_after(request(max_tokens=30), num_tokens=4)
    harness.publish(1, harness.other_weights())
    (resumed,) = harness.finish([request(max_tokens=30, partial=aborted.trajectory)])
    assert resumed.trajectory.runs[:-1] == aborted.trajectory.runs
    assert [run.policy_version for run in resumed.trajectory.runs] == [0, 1]


def test_the_limit_of_a_resumed_response_includes_its_partial_tokens(harness: Harness) -> None:
    aborted = harness.abort_after(request(max_tokens=30), num_tokens=4)
    (resumed,) = harness.finish([request(max_tokens=9, partial=aborted.trajectory)])
    assert resumed.finish_reason is FinishReason.STOP or resumed.num_tokens == 9


def test_an_aborted_resumed_response_keeps_both_parts(harness: Harness) -> None:
    first = harness.abort_after(request(max_tokens=30), num_tokens=4)
    second = harness.abort_after(request(max_tokens=30, partial=first.trajectory), num_tokens=3)
    assert second.trajectory.tokens.tolist()[:4] == first.trajectory.tokens.tolist()
    assert second.num_tokens == 7


def test_experts_of_tokens_are_those_of_the_weights_that_sampled_them(tmp_path: Path) -> None:
    """The engine without a model chooses them by version, place and layer."""
    model = build(tmp_path, MIXTURES[0], eos_token_id=2)
    options = EngineSettings(backend=EngineBackend.FAKE, extra_args={"median_tokens": 60.0})
    engine = create_engine(EngineSpec(options, 256, returns_experts=True), model)
    harness = Harness(engine, load_file(model / "model.safetensors"), eos_id=2, kv_block_tokens=16)
    harness.publish(0)
    begun = harness.abort_after(request(), 5)
    harness.publish(1)
    (resumed,) = harness.finish([request(partial=begun.trajectory)])
    found = resumed.trajectory
    assert found.experts is not None and found.prompt_experts is not None
    versions = np.where(np.arange(len(found)) < 5, 0, 1)
    places = len(PROMPT) - 1 + np.arange(len(found)) + versions
    assert (found.experts[:, 0, 0] == places % 3).all() and len(found.experts) == len(found)
    assert (found.prompt_experts[:, 1, 1] == (np.arange(len(PROMPT) - 1) + 2) % 3).all()
