"""Which pods get RDMA devices, and what the operator puts into them."""

from dataclasses import replace
from typing import Any

import pytest

from longshore.api.names import Component
from longshore_operator.config import RdmaDevices
from longshore_operator.pods import coordinator_pod, judge_pod, reward_pod, trainer_pod, worker_pod
from longshore_operator.rdma import uses_nccl_across_pods
from tests.unit.operator.model import CONFIG, make_job

HCA = "rdma/hca"
WITH_RDMA = replace(CONFIG, rdma=RdmaDevices(resource=HCA, count=2))
THROUGH_RAY = {"engine": {"weightTransfer": "ObjectStore"}}
Spec = dict[str, Any]


def components(**spec: Any) -> list[str]:
    """Return the components whose pods exchange data with other pods by NCCL."""
    job = make_job(**spec).spec
    pods = [Component.WORKER, *([Component.TRAINER] if job.trainer_workers is not None else [])]
    return [one.value for one in pods if uses_nccl_across_pods(job, one)]


def container(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod["spec"]["containers"][0]
    return found


def num_devices(pod: dict[str, Any]) -> str | None:
    """Return the devices that a pod requests, which are its limit."""
    resources = container(pod)["resources"]
    limit: str | None = resources.get("limits", {}).get(HCA)
    assert resources["requests"].get(HCA, limit) == limit
    return limit


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"workers": {"replicas": 1, "gpusPerPod": 8}}, []),
        ({"workers": {"replicas": 2, "gpusPerPod": 8}}, ["worker"]),
        ({"workers": {"replicas": 2, "gpusPerPod": 8, "gpuResourceName": "longshore.dev/pretend-gpu"}}, []),
        ({"workers": {"replicas": 2, "gpusPerPod": 0}}, []),
        (
            {"workers": {"replicas": 2, "gpusPerPod": 8}, "trainer": {"dataParallelSize": 1}, "rollout": THROUGH_RAY},
            [],
        ),
        ({"workers": {"replicas": 2, "gpusPerPod": 8}, "trainer": {"dataParallelSize": 1}}, ["worker"]),
    ],
    ids=["one pod", "gradients", "simulated GPUs", "no GPUs", "one replica and Ray", "one replica and a broadcast"],
)
def test_workers_that_train_need_devices_when_data_leave_their_pod(spec: Spec, expected: list[str]) -> None:
    assert components(**spec) == expected


@pytest.mark.parametrize(
    ("num_trainers", "engine", "expected"),
    [
        (1, {}, ["worker", "trainer"]),
        (1, {"weightTransfer": "ObjectStore"}, []),
        (2, {"weightTransfer": "ObjectStore"}, ["trainer"]),
        (1, {"weightTransfer": "ObjectStore", "tensorParallelSize": 4}, ["worker"]),
        (1, {"weightTransfer": "ObjectStore", "parallelism": "Adaptive"}, ["worker"]),
    ],
    ids=["broadcast", "Ray", "replicas in several pods", "engines of several pods", "engines that may grow"],
)
def test_disaggregated_pods_need_devices_on_the_side_that_uses_nccl(
    num_trainers: int, engine: Spec, expected: list[str]
) -> None:
    assert expected == components(
        placement="Disaggregated",
        workers={"replicas": 2, "gpusPerPod": 2},
        trainerWorkers={"replicas": num_trainers, "gpusPerPod": 2},
        rollout={"engine": engine},
    )


def test_only_pods_that_use_nccl_across_pods_get_devices() -> None:
    judge = {"placement": "Pool", "modelPath": "judge", "pool": {"replicas": 2}}
    pool = {"name": "grade", "kind": "Judge", "judge": judge}
    job = make_job(placement="Disaggregated", trainerWorkers={"replicas": 2}, reward={"pods": 1, "functions": [pool]})
    with_devices = [
        worker_pod(job, WITH_RDMA, 1, 0, "10.0.0.9", 1),
        trainer_pod(job, WITH_RDMA, 1, 0, "10.0.0.9"),
    ]
    without = [
        coordinator_pod(job, WITH_RDMA, 1),
        reward_pod(job, WITH_RDMA, 1, 0, "10.0.0.9"),
        judge_pod(job, WITH_RDMA, 1, 0, "10.0.0.9"),
        worker_pod(job, CONFIG, 1, 0, "10.0.0.9", 1),
    ]
    assert [num_devices(pod) for pod in with_devices] == ["2"] * 2
    assert [num_devices(pod) for pod in without] == [None] * 4


@pytest.mark.parametrize(
    "options",
    [
        {"resources": {HCA: 8}},
        {"template": {"spec": {"containers": [{"name": "longshore", "resources": {"limits": {HCA: "8"}}}]}}},
    ],
    ids=["resources", "template"],
)
def test_the_number_of_devices_that_a_job_requests_comes_first(options: Spec) -> None:
    job = make_job(workers={"replicas": 2, "gpusPerPod": 8, **options})
    assert num_devices(worker_pod(job, WITH_RDMA, 1, 0, "10.0.0.9", 1)) == "8"
