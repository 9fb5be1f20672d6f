"""A job whose trainer replica is split over two ranks, from `kubectl apply` to the exported model."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.e2e.jobs import Cluster, Json, assert_every_draw_once, fake_job, hashed_reward

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

STEPS = 3


def split_job(name: str, trainer: Json, modules: Path) -> Json:
    """A real trainer of two ranks behind engines that make responses up."""
    reward, coordinator = hashed_reward(modules)
    batch = {"promptsPerStep": 2, "responsesPerPrompt": 2, "maxResponseTokens": 32}
    return fake_job(
        name,
        algorithm={**batch, "steps": STEPS, "learningRate": 1e-3},
        rollout={"strategy": "Synchronous", "engine": {"backend": "Fake"}},
        reward=reward,
        trainer=trainer,
        workers={"replicas": 1, "gpusPerPod": 2, "gpuResourceName": "longshore.dev/pretend-gpu"},
        coordinator=coordinator,
    )


@pytest.mark.parametrize(
    ("name", "trainer"),
    [
        ("split", {"backend": "Megatron", "tensorParallelSize": 2}),
        ("sharded", {"backend": "Torch", "fsdpSize": 2}),
    ],
    ids=["Megatron", "Torch"],
)
@pytest.mark.soak
def test_a_replica_of_two_ranks_trains_publishes_and_exports(
    name: str, trainer: Json, cluster: Cluster, tmp_path: Path
) -> None:
    job = cluster.apply(split_job(name, trainer, tmp_path))
    status = job.wait_finished()
    assert status["phase"] == "Succeeded", job.story()
    assert status["runtime"]["step"] == STEPS
    ledger = job.ledger()
    assert len(ledger) == STEPS
    # Each step's tokens have the version of the step before, and engines serve what they acknowledged by checksum.
    assert_every_draw_once(ledger, num_prompts=2, num_responses=2)
    cluster.longshore("fetch", name, str(tmp_path / "model"))
    (initial,) = job.output().parents[1].glob("cache/tiny-*/model.safetensors")
    before, after = load_file(initial), load_file(tmp_path / "model" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(np.isfinite(after[name]).all() and not np.array_equal(before[name], after[name]) for name in before)
    assert not (tmp_path / "model" / "optimizer").exists()
    job.delete()
