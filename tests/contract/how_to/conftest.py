"""An embedded cluster with 64 GPUs by their usual name, on which pages install and remove Longshore."""

import shutil
from collections.abc import Iterator

import pytest
import yaml
from kubernetes import client

from longshore_devcluster.cluster import ClusterConfig
from longshore_devcluster.launcher import cluster_process
from tests.contract.how_to.pages import Json, Shell
from tests.contract.operator.harness import Cluster, Jobs, eventually

pytest.importorskip("helm_python", reason="the chart is installed with helm-python-sdk")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    config = ClusterConfig(gpu_resource="nvidia.com/gpu", gpus_per_node=64)
    with cluster_process(tmp_path_factory.mktemp("cluster"), config) as running:
        yield Cluster(running.kubeconfig)


@pytest.fixture(scope="session")
def shell(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    return Shell.prepared(tmp_path_factory.mktemp("shell"), cluster.kubeconfig)


@pytest.fixture
def teams(cluster: Cluster) -> Iterator[tuple[Jobs, Jobs]]:
    """Namespaces of two teams."""
    names = ("team-a", "team-b")
    for name in names:
        cluster.core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=name)))
    try:
        yield Jobs(cluster, names[0]), Jobs(cluster, names[1])
    finally:
        for name in names:
            cluster.core.delete_namespace(name)
        eventually("the namespaces are gone", lambda: not set(names) & namespaces(cluster))


def namespaces(cluster: Cluster) -> set[str]:
    """Names of all namespaces."""
    return {one.metadata.name for one in cluster.core.list_namespace().items}


def install(shell: Shell, values: Json | None = None) -> None:
    """Bring Longshore to the cluster, or other values to what is there, and wait for the operator."""
    (shell.folder / "values.yaml").write_text(yaml.safe_dump(values or {}))
    shell.run("longshore up --cluster current --values values.yaml")
