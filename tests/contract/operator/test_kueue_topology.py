"""Nodes that Kueue chooses (topology-aware scheduling): a stand-in, and a real Kueue that has the feature.

The cluster of `LONGSHORE_TEST_KUBECONFIG` has two nodes or more with GPUs of the tests, which may be simulated.
"""

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.operator.harness import GPU, Cluster, Jobs, Operator, eventually, job_spec
from tests.contract.operator.kueue import ON_LINUX, TEAM, Kueue, condition
from tests.contract.operator.pod_groups import start

RACK = "longshore.dev/test-rack"
LICENCE = "example.com/licence"
_numbers = itertools.count(1)


@pytest.fixture
def racks(cluster: Cluster) -> Iterator[dict[str, int]]:
    """GPUs by rack; every node with GPUs is in one of two. The second is one that nothing runs in, where need be."""
    nodes = {one.metadata.name: one for one in cluster.core.list_node().items if GPU in one.status.allocatable}
    if len(nodes) < 2:
        nodes |= {"idle": _create_idle_node(cluster, *nodes.values())}
    found = {"rack-0": 0, "rack-1": 0}
    for number, name in enumerate(sorted(nodes)):
        cluster.core.patch_node(name, {"metadata": {"labels": {RACK: f"rack-{number % 2}"}}})
        found[f"rack-{number % 2}"] += int(nodes[name].status.allocatable[GPU])
    yield found
    for name in nodes:
        if name == "idle":
            cluster.core.delete_node(name)
        else:
            cluster.core.patch_node(name, {"metadata": {"labels": {RACK: None}}})


def _create_idle_node(cluster: Cluster, like: Any) -> Any:
    cluster.core.create_node({"metadata": {"name": "idle", "labels": {"kubernetes.io/os": "linux"}}})
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "nothing runs here"}
    status = {"allocatable": like.status.allocatable, "capacity": like.status.capacity, "conditions": [ready]}
    return cluster.core.patch_node_status("idle", {"status": status})


@pytest.fixture
def kueue(cluster: Cluster, jobs: Jobs, kueue_operator: Operator, racks: dict[str, int]) -> Iterator[Kueue]:
    """A queue with all GPUs, whose flavor has the racks for a topology."""
    made = Kueue(cluster, f"racks-{next(_numbers)}")
    made.create_cluster_queue(sum(racks.values()), ON_LINUX, [RACK])
    made.create_local_queue(jobs.namespace, "team")
    yield made
    jobs.delete_all()
    made.delete_queue()


def create(jobs: Jobs, kueue: Kueue, annotation: str, replicas: int, gates: list[dict[str, str]] | None = None) -> None:
    """A job whose workers have a topology annotation."""

    def found() -> dict[str, Any]:
        return kueue.workload(jobs.namespace, "demo")

    spec = job_spec(replicas=replicas)
    template = spec["workers"]["template"]
    value = "true" if "unconstrained" in annotation else RACK
    template["metadata"] = {"annotations": {f"kueue.x-k8s.io/{annotation}": value}}
    template["spec"] |= {"schedulingGates": gates} if gates else {}
    jobs.create(labels=TEAM, **spec)
    eventually("Kueue has looked", lambda: condition(found(), "QuotaReserved"))
    assignments = (found()["status"].get("admission") or {}).get("podSetAssignments", [{"topologyAssignment": True}])
    if "LONGSHORE_TEST_KUBECONFIG" in os.environ and not any("topologyAssignment" in one for one in assignments):
        pytest.skip("the feature TopologyAwareScheduling of Kueue is off")


def workers(jobs: Jobs) -> list[Any]:
    return [pod for name, pod in sorted(jobs.pods().items()) if "-worker-" in name]


def wait_placed(jobs: Jobs, replicas: int) -> list[str]:
    """Wait until all workers have a node; racks that Kueue gave them, by index."""
    start(jobs)
    eventually("the workers have nodes", lambda: sum(bool(pod.spec.node_name) for pod in workers(jobs)) == replicas)
    found = [pod.spec.node_selector[RACK] for pod in workers(jobs)]
    nodes = {node.metadata.name: node.metadata.labels for node in jobs.cluster.core.list_node().items}
    assert [nodes[pod.spec.node_name][RACK] for pod in workers(jobs)] == found
    return found


def test_all_workers_are_in_the_rack_that_kueue_chose(jobs: Jobs, kueue: Kueue, racks: dict[str, int]) -> None:
    count = min(racks.values())
    create(jobs, kueue, "podset-required-topology", count)
    assert len(set(wait_placed(jobs, count))) == 1
    request = {
        one["name"]: one.get("topologyRequest") for one in kueue.workload(jobs.namespace, "demo")["spec"]["podSets"]
    }
    assert request["worker"] == {"required": RACK, "podIndexLabel": "longshore.dev/index"}
    # The whole queue has a topology, so Kueue places the pods that ask for nothing, too.
    assert jobs.pods()["demo-coordinator"].spec.node_selector[RACK] in racks


def test_a_job_that_no_rack_has_room_for_waits_in_kueues_words(jobs: Jobs, kueue: Kueue, racks: dict[str, int]) -> None:
    create(jobs, kueue, "podset-required-topology", max(racks.values()) + 1)
    jobs.wait_reported("demo", "QuotaPending", "topology")
    assert jobs.pods() == {}


def test_a_worker_that_is_replaced_returns_to_its_rack(jobs: Jobs, kueue: Kueue, racks: dict[str, int]) -> None:
    count = max(racks.values()) + 1
    create(jobs, kueue, "podset-preferred-topology", count)
    before = wait_placed(jobs, count)
    assert set(before) == set(racks)
    uid = jobs.delete_pod("demo-worker-0")
    eventually("it was replaced", lambda: (pod := jobs.pods().get("demo-worker-0")) and pod.metadata.uid != uid)
    assert wait_placed(jobs, count) == before


def test_gates_of_a_template_stay_when_kueue_has_removed_its_own(jobs: Jobs, kueue: Kueue) -> None:
    create(jobs, kueue, "podset-unconstrained-topology", 1, gates=[{"name": LICENCE}])
    start(jobs)
    eventually("Kueue has chosen", lambda: workers(jobs) and RACK in (workers(jobs)[0].spec.node_selector or {}))
    [pod] = workers(jobs)
    assert [gate.name for gate in pod.spec.scheduling_gates] == [LICENCE]
    assert pod.spec.node_name is None
