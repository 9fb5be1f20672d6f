"""Engines of vLLM that regroup: whichever size samples, the numbers are those of the model."""

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from safetensors.numpy import load_file

from longshore.api.pods import Workers
from longshore.api.rollout import EngineSettings
from longshore_runtime.backends.engine_protocol import Completion, FinishReason, Request
from longshore_runtime.backends.engine_spec import EngineSpec
from longshore_runtime.backends.tiny_model import build_tiny_model
from longshore_runtime.rollout.engine_pool import EnginePool
from longshore_runtime.rollout.events import Event
from longshore_runtime.rollout.published import StoredWeights
from longshore_runtime.trajectories.trajectory import EMPTY, Trajectory
from longshore_runtime.weights.buckets import buckets, checksums, combined_checksum
from longshore_runtime.weights.slices import Weights
from tests.contract.engines.harness import BUCKET_BYTES, MAX_CONTEXT_TOKENS, request
from tests.contract.engines.pods import LIMIT_S, Job
from tests.contract.engines.reference import reference_log_probs
from tests.ray_pods import ENGINES, worker_pods

pytestmark = pytest.mark.timeout(600)

WORKERS = Workers(replicas=1, gpus_per_pod=2, gpu_resource_name="longshore.dev/gpu")
LONG_PROMPT = tuple(range(10, 100))
MAX_TOKENS = 40


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a tiny model in it whose output layer is its embedding."""
    root = tmp_path_factory.mktemp("storage")
    build_tiny_model(root / "model", seed=0, tied=True)
    return root


@pytest.fixture(scope="module")
def job(storage: Path) -> Iterator[Job]:
    """Engines in one pod with two pretended GPUs."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    with worker_pods(storage, count=1, imports=ENGINES):
        spec = EngineSpec(EngineSettings(enforce_eager=True), MAX_CONTEXT_TOKENS)
        pool = EnginePool(WORKERS, spec, "model", "output", events)
        try:
            pool.wait_for_all()
            yield Job(pool, events)
        finally:
            pool.stop()


def published(weights: Weights, policy_version: int) -> StoredWeights:
    """In several buckets."""
    parts = list(buckets(weights.items(), BUCKET_BYTES))
    assert len(parts) > 3
    references: tuple[Any, ...] = tuple(ray.put(part) for part in parts)
    return StoredWeights(references, combined_checksum(checksums(part) for part in parts), policy_version)


def greedy(partial: Trajectory = EMPTY, max_tokens: int = MAX_TOKENS) -> Request:
    """Behind a prompt that is long enough to be cached."""
    return request(LONG_PROMPT, max_tokens=max_tokens, temperature=0.0, partial=partial)


def cut(whole: Completion, num_tokens: int) -> Trajectory:
    """The response as it was after so many tokens."""
    (run,), sampled = whole.trajectory.runs, whole.trajectory
    return Trajectory(
        sampled.tokens[:num_tokens], sampled.log_probs[:num_tokens], (run._replace(num_tokens=num_tokens),)
    )


def test_every_size_samples_what_the_model_says_and_continues_what_another_began(job: Job, storage: Path) -> None:
    old = load_file(storage / "model" / "model.safetensors")
    random = np.random.default_rng(1)
    new = {name: (one + 0.3 * random.standard_normal(one.shape)).astype(np.float32) for name, one in old.items()}
    wholes: dict[int, Completion] = {}

    def check(weights: Weights, version: int) -> None:
        """Check log-probabilities of every engine, and greedy responses, also those that another size began."""
        for engine in job.pool.serving():
            sampled = job.finish(engine, request(LONG_PROMPT, max_tokens=MAX_TOKENS))
            assert [run.policy_version for run in sampled.trajectory.runs] == [version]
            expected = reference_log_probs(storage / "model", weights, LONG_PROMPT, sampled, 1.0)
            np.testing.assert_allclose(sampled.trajectory.log_probs.tolist(), expected, atol=1e-4)
            whole = wholes.setdefault(version, job.finish(engine, greedy()))
            resumed = job.finish(engine, greedy(cut(whole, whole.num_tokens // 2)))
            assert resumed.trajectory.tokens.tolist() == whole.trajectory.tokens.tolist()

    if job.pool.tp_size != 1:
        job.pool.regroup(1)  # In random order, another test came first.
    job.pool.publish(published(old, 0))
    assert (job.pool.tp_size, job.pool.serving()) == (1, [0, 1])
    check(old, 0)
    job.pool.regroup(2)
    assert (job.pool.tp_size, job.pool.serving()) == (2, [2])
    check(old, 0)
    job.pool.publish(published(new, 1))
    check(new, 1)
    job.pool.regroup(1)
    assert (job.pool.tp_size, job.pool.serving()) == (1, [0, 1]), "they were parked"
    check(new, 1)
    assert wholes[0].trajectory.tokens.tolist() != wholes[1].trajectory.tokens.tolist()
    job.pool.publish(published(old, 2))
    check(old, 2)
    assert wholes[2].trajectory.tokens.tolist() == wholes[0].trajectory.tokens.tolist()


def stopped_part(job: Job, engine: int, most: int) -> Completion:
    """The beginning of a response that was stopped; one that ends first, on a busy machine, is followed by another."""
    while True:
        begun = greedy(max_tokens=most)
        job.pool.add(engine, [begun])
        while job.events.empty() and not [one for one in job.pool.live(LIMIT_S)[engine] if one.generated_tokens]:
            pass
        job.pool.abort(engine, [begun.request_id])
        part = job.next_response(engine)
        if part.finish_reason is FinishReason.ABORT and part.num_tokens:
            return part


def test_an_aborted_response_goes_on_after_engines_regrouped(job: Job, storage: Path) -> None:
    job.pool.publish(published(load_file(storage / "model" / "model.safetensors"), 3))
    engine, *_ = job.pool.serving()
    most = MAX_CONTEXT_TOKENS - len(LONG_PROMPT)
    whole = job.finish(engine, greedy(max_tokens=most))
    part = stopped_part(job, engine, most)
    assert part.num_tokens < whole.num_tokens
    job.pool.regroup(3 - job.pool.tp_size)
    engine, *_ = job.pool.serving()
    assert (
        job.finish(engine, greedy(part.trajectory, most)).trajectory.tokens.tolist() == whole.trajectory.tokens.tolist()
    )
