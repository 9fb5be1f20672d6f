"""A vLLM engine whose tensor-parallel ranks lie in two pods."""

import queue
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from longshore.api.pods import Workers
from longshore.api.rollout import EngineSettings
from longshore_runtime.backends.engine_spec import EngineSpec
from longshore_runtime.backends.tiny_model import build_tiny_model
from longshore_runtime.rollout.engine_pool import EnginePool
from longshore_runtime.rollout.events import Event
from tests.contract.engines.harness import MAX_CONTEXT_TOKENS, PROMPT, request
from tests.contract.engines.pods import Job
from tests.contract.engines.reference import reference_log_probs
from tests.contract.engines.test_vllm_pool import published
from tests.ray_pods import ENGINES, worker_pods

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


def test_an_engine_in_two_pods_samples_what_the_model_says_with_published_weights(tmp_path: Path) -> None:
    build_tiny_model(tmp_path / "model", seed=0)
    old = load_file(tmp_path / "model" / "model.safetensors")
    random = np.random.default_rng(1)
    new = {name: (one + 0.3 * random.standard_normal(one.shape)).astype(np.float32) for name, one in old.items()}
    workers = Workers(replicas=2, gpus_per_pod=1, gpu_resource_name="longshore.dev/gpu")
    spec = EngineSpec(EngineSettings(enforce_eager=True, tensor_parallel_size=2), MAX_CONTEXT_TOKENS)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    with worker_pods(tmp_path, count=2, imports=ENGINES):
        pool = EnginePool(workers, spec, "model", "output", events)
        try:
            pool.wait_for_all()
            job = Job(pool, events)
            assert pool.pods_of(0) == (0, 1)
            for version, weights in enumerate((old, new)):
                pool.publish(published(weights, version))
                sampled = job.finish(0, request(PROMPT, max_tokens=16))
                assert [run.policy_version for run in sampled.trajectory.runs] == [version]
                expected = reference_log_probs(tmp_path / "model", weights, PROMPT, sampled, 1.0)
                np.testing.assert_allclose(sampled.trajectory.log_probs.tolist(), expected, atol=1e-4)
        finally:
            pool.stop()
