"""The PodGroup of a job, for each scheduler: tables from the documented APIs."""

from fractions import Fraction
from typing import Any

import pytest

from longshore_operator.config import OperatorConfig
from longshore_operator.pod_group_steps import pod_group
from longshore_operator.pod_sets import requests
from tests.unit.operator.model import make_job
from tests.unit.operator.test_environment_pods import playing
from tests.unit.operator.test_judge_pools import judged

CONFIG = OperatorConfig(runtime_image="runtime:1", priority_classes=frozenset({"urgent"}))
GPU = "nvidia.com/gpu"


def made(num_workers: int = 2, kind: str = "Volcano", **spec: Any) -> dict[str, Any]:
    scheduling = {"podGroup": kind} | spec.pop("scheduling", {})
    return pod_group(make_job(scheduling=scheduling, **spec), CONFIG, num_workers)


@pytest.mark.parametrize(
    ("kind", "version"),
    [
        ("Volcano", "scheduling.volcano.sh/v1beta1"),
        ("SchedulerPlugins", "scheduling.x-k8s.io/v1alpha1"),
        ("Kubernetes", "scheduling.k8s.io/v1alpha2"),
    ],
)
def test_it_belongs_to_the_job(kind: str, version: str) -> None:
    group = made(kind=kind)
    assert (group["apiVersion"], group["kind"]) == (version, "PodGroup")
    assert group["metadata"]["name"] == "demo-rljob"
    assert group["metadata"]["ownerReferences"][0]["uid"] == "job-uid"


@pytest.mark.parametrize("kind", ["Volcano", "SchedulerPlugins"])
def test_two_workers_and_a_reward_pod_start_together_with_all_that_they_request(kind: str) -> None:
    spec = made(kind=kind)["spec"]
    assert spec["minMember"] == 3
    total = made(kind=kind, reward={"pods": 1, "resources": {"cpu": "3", "memory": "2Gi"}})["spec"]["minResources"]
    assert total == {GPU: "2", "cpu": "5", "memory": "10Gi"}


def test_kubernetes_wants_the_number_of_pods_alone() -> None:
    assert made(kind="Kubernetes")["spec"] == {"schedulingPolicy": {"gang": {"minCount": 3}}}


def test_trainers_judges_and_environments_are_members_and_changing_rewards_are_not() -> None:
    spec: dict[str, Any] = judged() | {"placement": "Disaggregated", "trainerWorkers": {"replicas": 4}}
    spec["reward"] = spec["reward"] | {"pods": 1, "maxPods": 9}
    assert made(**spec)["spec"]["minMember"] == 2 + 4 + 1 + 3
    assert made(**playing())["spec"]["minMember"] == 2 + 1 + 3


def test_an_elastic_job_starts_with_the_workers_that_it_is_given() -> None:
    workers = {"replicas": 8, "minReplicas": 2, "gpusPerPod": 4}
    spec = made(num_workers=3, workers=workers)["spec"]
    assert (spec["minMember"], spec["minResources"][GPU]) == (4, "12")


def test_volcano_learns_the_queue_and_the_priority_of_the_workers() -> None:
    workers = {"gpusPerPod": 1, "template": {"spec": {"priorityClassName": "urgent"}}}
    spec = made(scheduling={"queue": "research"}, workers=workers)["spec"]
    assert (spec["queue"], spec["priorityClassName"]) == ("research", "urgent")
    assert not {"queue", "priorityClassName"} & made()["spec"].keys()


@pytest.mark.parametrize(
    ("pod", "cpu"),
    [
        ({"containers": [{"resources": {"requests": {"cpu": "500m"}}}, {"resources": {"limits": {"cpu": 2}}}]}, 2.5),
        ({"containers": [{"resources": {"requests": {"cpu": 1}, "limits": {"cpu": 4}}}]}, 1),
        (
            {
                "containers": [{"resources": {"requests": {"cpu": 1}}}],
                "initContainers": [{"resources": {"requests": {"cpu": 3}}}],
            },
            3,
        ),
        (
            {
                "containers": [{"resources": {"requests": {"cpu": 1}}}],
                "initContainers": [
                    {"restartPolicy": "Always", "resources": {"requests": {"cpu": 2}}},
                    {"resources": {"requests": {"cpu": 0.5}}},
                ],
                "overhead": {"cpu": "250m"},
            },
            3.25,
        ),
        ({"containers": [{"resources": {"requests": {"cpu": 1, "memory": None}}}], "overhead": {"memory": None}}, 1),
    ],
    ids=["containers together", "request before limit", "the largest init container", "sidecars and overhead", "null"],
)
def test_a_pod_requests_what_the_scheduler_counts(pod: dict[str, Any], cpu: float) -> None:
    assert requests(pod) == {"cpu": Fraction(cpu)}
