"""Trainers with pods of their own: placement Disaggregated, on a cluster in memory."""

from typing import Any

import pytest

from longshore.api.names import Component
from tests.unit.operator.model import Cluster, running_cluster

TRAINERS = {"replicas": 2, "gpusPerPod": 4, "gpuResourceName": "amd.com/gpu", "resources": {"memory": "64Gi"}}
ALL_PODS = [
    "demo-coordinator", "demo-reward-0", "demo-trainer-0", "demo-trainer-1", "demo-worker-0", "demo-worker-1"
]  # fmt: skip


def apart(**trainers: Any) -> dict[str, Any]:
    return {"placement": "Disaggregated", "trainerWorkers": {**TRAINERS, **trainers}}


@pytest.fixture
def running() -> Cluster:
    """A job with two workers and two trainer pods, all ready."""
    return running_cluster(**apart())


def test_trainer_pods_are_made_when_the_coordinator_has_an_address(running: Cluster) -> None:
    assert running.names() == ALL_PODS
    assert running.condition("Ready") == ("True", "PodsReady", "all 6 pods are ready")
    assert (running.status.trainers.desired, running.status.trainers.ready) == (2, 2)
    assert (running.status.gpus.rollout, running.status.gpus.trainer) == (2, 8)
    assert running.plan().actions == ()


def test_a_trainer_pod_is_like_a_worker_with_gpus_of_its_own(running: Cluster) -> None:
    trainer, worker = (running.manifests["Pod", f"demo-{kind}-1"] for kind in ("trainer", "worker"))
    (container,), (like,) = trainer["spec"]["containers"], worker["spec"]["containers"]
    assert container["command"] == ["python", "-m", "longshore_runtime", "trainer"]
    assert container["resources"] == {
        "requests": {"cpu": "1", "memory": "64Gi", "amd.com/gpu": "4"},
        "limits": {"amd.com/gpu": "4", "memory": "64Gi"},
    }
    labels = trainer["metadata"]["labels"]
    assert (labels["longshore.dev/role"], labels["longshore.dev/index"]) == ("trainer", "1")
    assert "longshore.dev/tp-size" not in labels
    changed = [entry["name"] for entry in container["env"] if entry not in like["env"]]
    assert changed == ["LONGSHORE_COMPONENT"]
    assert trainer["spec"]["volumes"] == worker["spec"]["volumes"]


def test_changed_trainer_pods_are_a_new_attempt(running: Cluster) -> None:
    running.spec, running.generation = apart(replicas=1, gpusPerPod=8), 4
    running.reconcile_until_stable()
    assert running.status.attempt == 2
    assert len([pod for pod in running.pods.values() if pod.component is Component.TRAINER]) == 1
    assert running.status.gpus.trainer == 8


def test_a_job_that_is_colocated_again_has_none(running: Cluster) -> None:
    running.spec = {}
    running.reconcile_until_stable()
    assert running.names() == [name for name in ALL_PODS if "trainer" not in name]
