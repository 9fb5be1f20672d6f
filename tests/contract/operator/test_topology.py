"""Nodes that a real scheduler gives to the pods of a job.

`LONGSHORE_TEST_KUBECONFIG` names a cluster with two nodes or more that have GPUs of the tests.
Their labels are set here.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.operator.harness import GPU, Cluster, Jobs, Operator, eventually, job_spec
from tests.contract.operator.pod_groups import start

pytestmark = pytest.mark.skipif("LONGSHORE_TEST_KUBECONFIG" not in os.environ, reason="it needs a real scheduler")
RACK = "longshore.dev/test-rack"


@pytest.fixture
def racks(cluster: Cluster) -> Iterator[dict[str, str]]:
    """Two racks: the rack of every node with GPUs."""
    nodes = sorted(node.metadata.name for node in cluster.core.list_node().items if GPU in node.status.allocatable)
    if len(nodes) < 2:
        pytest.skip("the cluster has one node")
    rack_of = {node: f"rack-{number % 2}" for number, node in enumerate(nodes)}
    for node, rack in rack_of.items():
        cluster.core.patch_node(node, {"metadata": {"labels": {RACK: rack}}})
    yield rack_of
    for node in nodes:
        cluster.core.patch_node(node, {"metadata": {"labels": {RACK: None}}})


def nodes_of(jobs: Jobs, name: str, replicas: int, gpus_per_pod: int, **scheduling: Any) -> list[str]:
    """Create a job; the nodes of its workers."""
    jobs.create(name, **job_spec(replicas=replicas, gpus_per_pod=gpus_per_pod), scheduling=scheduling)
    start(jobs, name)

    def placed() -> list[str]:
        pods = [pod for pod_name, pod in jobs.pods().items() if pod_name.startswith(f"{name}-worker-")]
        return [pod.spec.node_name for pod in pods if pod.spec.node_name is not None]

    eventually(f"the workers of {name} have nodes", lambda: len(placed()) == replicas)
    return placed()


@pytest.mark.parametrize("required", [True, False])
def test_the_workers_of_a_job_are_in_one_rack(
    jobs: Jobs, operator: Operator, racks: dict[str, str], required: bool
) -> None:
    topology = {"key": RACK, "required": required}
    num_nodes = sum(rack == "rack-1" for rack in racks.values())
    for name in ("first", "second"):
        nodes = nodes_of(jobs, name, num_nodes, 8, topology=topology)
        assert len({racks[node] for node in nodes}) == 1


def test_the_workers_of_a_job_are_spread_over_racks(jobs: Jobs, operator: Operator, racks: dict[str, str]) -> None:
    nodes = nodes_of(jobs, "demo", 4, 1, topology={"mode": "Spread", "key": RACK, "required": True})
    found = [racks[node] for node in nodes]
    assert found.count("rack-0") == found.count("rack-1") == 2


def test_small_jobs_leave_whole_nodes_free(jobs: Jobs, operator: Operator, racks: dict[str, str]) -> None:
    nodes = [nodes_of(jobs, f"small-{number}", 1, 1, packNodes=True) for number in range(4)]
    assert len({node for (node,) in nodes}) == 1
