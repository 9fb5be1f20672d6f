"""Jobs whose trainer replicas lie in two pods each: one pod is lost, and whole sets of pods are repurposed."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.jobs import Cluster, Job, Json, assert_every_draw_once, fake_job, hashed_reward

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NUM_PROMPTS, NUM_RESPONSES, NUM_STEPS = 4, 4, 20


def job_across_pods(name: str, modules: Path, *, pods: int = 2, steps: int, trainer: Json, **rollout: Any) -> Json:
    """A real trainer of two ranks in pods of one pretended GPU, behind engines that make responses up."""
    reward, coordinator = hashed_reward(modules)
    batch = {"promptsPerStep": NUM_PROMPTS, "responsesPerPrompt": NUM_RESPONSES, "maxResponseTokens": 64}
    return fake_job(
        name,
        algorithm={**batch, "steps": steps, "learningRate": 1e-3},
        rollout={"strategy": "Synchronous", **rollout},
        reward=reward,
        trainer={"verifyEvery": 1, **trainer},
        workers={"replicas": pods, "gpusPerPod": 1, "gpuResourceName": "longshore.dev/pretend-gpu"},
        coordinator=coordinator,
    )


def trains(status: Json) -> bool:
    """Gradients are computed, after the second step."""
    runtime = status.get("runtime", {})
    return runtime.get("step", 0) >= 2 and runtime.get("activity") == "Train"


def assert_exact(job: Job) -> None:
    """Every update was compared with one pass over its whole batch."""
    differences = [row["trainer/gradient_difference"] for row in job.metrics()]
    assert max(differences) < 2e-5
    assert_every_draw_once(job.ledger(), NUM_PROMPTS, NUM_RESPONSES)


@pytest.mark.parametrize(
    ("name", "trainer"),
    [
        ("sharded", {"backend": "Torch", "fsdpSize": 2}),
        pytest.param("staged", {"backend": "Megatron", "pipelineParallelSize": 2}, marks=pytest.mark.soak),
    ],
    ids=["Torch", "Megatron"],
)
def test_a_job_goes_on_after_a_pod_of_a_replica_was_lost_while_it_trained(
    name: str, trainer: Json, cluster: Cluster, tmp_path: Path
) -> None:
    manifest = job_across_pods(name, tmp_path, steps=NUM_STEPS, trainer=trainer, engine={"backend": "Fake"})
    job = cluster.apply(manifest)
    job.wait("the trainer computes", trains)
    job.wait_replaced("worker-1", job.remove("worker-1"))
    status = job.wait_finished()
    assert status["phase"] == "Succeeded", job.story()
    assert (status["attempt"], status["runtime"]["step"]) == (1, NUM_STEPS), "no session had to start again"
    assert "the trainers start again" in (job.output() / "logs" / "coordinator-1.log").read_text()
    assert_exact(job)
    job.delete()


@pytest.mark.soak
def test_the_two_pods_of_a_replica_are_repurposed_together(cluster: Cluster, tmp_path: Path) -> None:
    engine = {"backend": "Fake", "extraArgs": {"step_s": 0.03, "sigma": 1.5}}
    streamed: Json = {"handover": "Streamed", "repurposing": {"trigger": "Fixed", "fraction": 0.25}, "engine": engine}
    trainer = {"backend": "Torch", "fsdpSize": 2}
    job = cluster.apply(job_across_pods("together", tmp_path, pods=4, steps=6, trainer=trainer, **streamed))
    status = job.wait("pods train while others sample", lambda s: s.get("runtime", {}).get("trainerPods"))
    assert status["runtime"]["trainerPods"] in ([0, 1], [2, 3])
    status = job.wait_finished()
    assert status["phase"] == "Succeeded", job.story()
    assert any(row.get("repurpose/num_moved", 0) > 0 for row in job.metrics())
    assert_exact(job)
    job.delete()
