"""One cluster for all tests here, one namespace for each.

The cluster is the embedded one, or that of $LONGSHORE_TEST_KUBECONFIG, where pods need an image with `sh`.
"""

import itertools
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kubernetes import client

from longshore_devcluster.cluster import ClusterConfig
from longshore_devcluster.launcher import cluster_process
from tests.contract.operator.harness import (
    ALLOWED_PRIORITY_CLASS,
    CHART,
    CHART_VALUES,
    RELEASE_NAMESPACE,
    SERVICE_ACCOUNT,
    Cluster,
    Jobs,
    Operator,
    eventually,
)
from tests.contract.operator.kueue import operator_with_kueue

helm = pytest.importorskip("helm_python", reason="the chart is installed with helm-python-sdk")

OPTIONS = ("--all-namespaces", f"--allow-priority-class={ALLOWED_PRIORITY_CLASS}")
GRACE_S = 180.0
"""Longer than any pod of a job may take to end."""
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    given = os.environ.get("LONGSHORE_TEST_KUBECONFIG")
    if given:
        yield Cluster(Path(given))
        return
    with cluster_process(tmp_path_factory.mktemp("cluster"), ClusterConfig(gpus_per_node=8)) as running:
        yield Cluster(running.kubeconfig)


@pytest.fixture(scope="session")
def chart(cluster: Cluster) -> Iterator[None]:
    """The chart, installed without operator pods: its CRD and its rights."""
    with chart_in(cluster.kubeconfig):
        yield


@contextmanager
def chart_in(kubeconfig: Path) -> Iterator[None]:
    """The chart, in a cluster for as long as the context lasts."""
    with helm.Config(namespace=RELEASE_NAMESPACE, kubeconfig_path=str(kubeconfig)) as release:
        release.install(str(CHART), "longshore", CHART_VALUES, create_namespace=True, timeout=60)
        yield
        release.uninstall("longshore", timeout=60)


@pytest.fixture(scope="session")
def operator_kubeconfig(cluster: Cluster, chart: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Access with the operator's own service account and no other rights."""
    path = tmp_path_factory.mktemp("operator") / "kubeconfig"
    return cluster.token_kubeconfig(path, RELEASE_NAMESPACE, SERVICE_ACCOUNT)


@pytest.fixture(scope="module")
def operator(operator_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """An operator for all namespaces that leads."""
    process = Operator(operator_kubeconfig, tmp_path_factory.mktemp("operator") / "log", *OPTIONS)
    process.wait_leading()
    yield process
    code = process.stop()
    print(process.log())
    assert code == 0


@pytest.fixture(scope="module")
def kueue_operator(
    cluster: Cluster, operator_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    """An operator that uses Kueue, and something that admits Workloads."""
    with operator_with_kueue(cluster, operator_kubeconfig, tmp_path_factory.mktemp("operator") / "log") as process:
        yield process


@pytest.fixture
def jobs(cluster: Cluster, chart: None) -> Iterator[Jobs]:
    """A namespace of its own, which leaves the node to the next test."""
    with namespace(cluster) as name:
        yield Jobs(cluster, name)


@pytest.fixture
def teams(cluster: Cluster, chart: None) -> Iterator[tuple[Jobs, Jobs, Jobs]]:
    """Three namespaces."""
    with namespace(cluster) as first, namespace(cluster) as second, namespace(cluster) as third:
        yield Jobs(cluster, first), Jobs(cluster, second), Jobs(cluster, third)


@pytest.fixture(scope="session")
def running_pods(cluster: Cluster) -> None:
    """For tests whose pods have to run: nodes that are simulated run none."""
    nodes = json.loads(cluster.core.list_node(_preload_content=False).data)["items"]
    if not any(node["status"]["nodeInfo"].get("containerRuntimeVersion") for node in nodes):
        pytest.skip("the nodes of the cluster are simulated, and its pods have to run")


@contextmanager
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace, gone with all of its pods afterwards: another test may need their places."""
    name = f"team-{next(_numbers)}"
    cluster.core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=name)))
    yield name
    cluster.core.delete_namespace(name)
    eventually(f"no pod is left in {name}", lambda: not cluster.core.list_namespaced_pod(name).items, GRACE_S)
