"""Pods of a job start together.

PodGroups of Volcano and scheduler-plugins are tried by their definitions alone, and those of Kubernetes with its own
scheduler, where the cluster serves them.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from longshore.api.scheduling import PodGroupKind
from tests.contract.operator.harness import GPU, Cluster, Jobs, Operator, eventually, job_spec
from tests.contract.operator.pod_groups import install_definition, is_served, pod_group, remove_definition, start

IS_EMBEDDED = "LONGSHORE_TEST_KUBECONFIG" not in os.environ
VOLCANO, PLUGINS, KUBERNETES = PodGroupKind.VOLCANO, PodGroupKind.SCHEDULER_PLUGINS, PodGroupKind.KUBERNETES


@pytest.fixture(scope="module")
def operator(
    cluster: Cluster, operator_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    """An operator for the kinds that the cluster has, and for those that a test installs."""
    kinds = [VOLCANO, PLUGINS, *([KUBERNETES] if is_served(cluster, KUBERNETES) else [])]
    log = tmp_path_factory.mktemp("operator") / "log"
    process = Operator(operator_kubeconfig, log, "--all-namespaces", *(f"--pod-groups={kind.value}" for kind in kinds))
    process.wait_leading()
    yield process
    process.stop()
    print(process.log())


@pytest.fixture
def kind(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[PodGroupKind]:
    """A kind of PodGroup that the cluster serves during the test."""
    wanted: PodGroupKind = request.param
    has_own = is_served(cluster, wanted)
    if not has_own:
        if wanted is KUBERNETES:
            pytest.skip("the cluster serves no PodGroups of scheduling.k8s.io")
        install_definition(cluster, wanted)
    yield wanted
    if not has_own:
        remove_definition(cluster, wanted)


def scheduling(kind: PodGroupKind, **more: Any) -> dict[str, Any]:
    """A PodGroup whose pods the scheduler of the cluster places."""
    return {"podGroup": kind.value, "schedulerName": "default-scheduler"} | more


def members(jobs: Jobs, name: str = "demo") -> list[Any]:
    return [pod for found, pod in sorted(jobs.pods().items()) if found.startswith(f"{name}-worker-")]


def group_of(pod: Any, kind: PodGroupKind) -> str | None:
    """PodGroup that a pod belongs to, as the scheduler finds it."""
    if kind is VOLCANO:
        return (pod.metadata.annotations or {}).get("scheduling.k8s.io/group-name")
    return (pod.metadata.labels or {}).get("scheduling.x-k8s.io/pod-group")


@pytest.mark.parametrize("kind", [VOLCANO, PLUGINS], indirect=True)
def test_workers_are_members_of_a_group_that_lives_as_long_as_the_job_has_pods(
    cluster: Cluster, jobs: Jobs, operator: Operator, kind: PodGroupKind
) -> None:
    jobs.create(scheduling=scheduling(kind))
    start(jobs)
    eventually("two workers", lambda: len(members(jobs)) == 2)
    found = pod_group(cluster, kind, jobs.namespace)
    assert found["spec"] == {"minMember": 2, "minResources": {GPU: "2", "cpu": "20m", "memory": "32Mi"}}
    assert [group_of(pod, kind) for pod in members(jobs)] == ["demo-rljob"] * 2
    assert group_of(jobs.pods()["demo-coordinator"], kind) is None
    jobs.patch({"suspend": True})
    eventually("the group is gone", lambda: not pod_group(cluster, kind, jobs.namespace))
    jobs.patch({"suspend": False, "workers": {"replicas": 3}})
    start(jobs)
    eventually("three workers", lambda: len(members(jobs)) == 3)
    assert pod_group(cluster, kind, jobs.namespace)["spec"]["minMember"] == 3


@pytest.mark.skipif(not IS_EMBEDDED, reason="the operator was installed with every kind that the cluster serves")
def test_a_kind_that_the_operator_was_not_installed_for_is_named(jobs: Jobs, operator: Operator) -> None:
    jobs.create(scheduling={"podGroup": "Kubernetes"})
    condition = jobs.wait_condition("Admitted", "PodGroupUnavailable")
    assert "add Kubernetes to the chart's podGroups" in condition["message"]


@pytest.mark.parametrize("kind", [KUBERNETES], indirect=True)
def test_the_scheduler_of_kubernetes_places_a_gang_whole_or_not_at_all(
    cluster: Cluster, jobs: Jobs, operator: Operator, kind: PodGroupKind
) -> None:
    nodes = cluster.core.list_node().items
    (gpus_per_node,) = {int((node.status.allocatable or {}).get(GPU, 0)) for node in nodes} - {0}

    def create(name: str, num_workers: int) -> None:
        spec = job_spec(replicas=num_workers, gpus_per_pod=gpus_per_node)
        jobs.create(name, **spec, scheduling={"podGroup": kind.value})
        start(jobs, name)

    def placed(name: str) -> set[str]:
        return {pod.metadata.uid for pod in members(jobs, name) if pod.spec.node_name is not None}

    create("large", len(nodes) + 1)
    jobs.wait_condition("Scheduled", "Unschedulable", "large")
    assert placed("large") == set()
    create("fits", len(nodes))
    eventually("the gang has its nodes", lambda: len(placed("fits")) == len(nodes))
    assert placed("large") == set()
    lost = jobs.delete_pod("fits-worker-0")
    eventually("its successor joins the gang", lambda: len(placed("fits") - {lost}) == len(nodes))
