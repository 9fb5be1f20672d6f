"""The cluster under test: the embedded one, or a real one named by LONGSHORE_TEST_KUBECONFIG.

On a real cluster LONGSHORE_TEST_IMAGE names an image with a shell and the usual small tools.
"""

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore_devcluster.cluster import ClusterConfig
from longshore_devcluster.launcher import cluster_process
from tests.contract.kube_nodes.kube import Kubectl

REAL = os.environ.get("LONGSHORE_TEST_KUBECONFIG")
IMAGE = os.environ.get("LONGSHORE_TEST_IMAGE", "busybox")


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    if REAL:
        yield Path(REAL)
        return
    config = ClusterConfig(num_nodes=2, gpus_per_node=4, restart_backoff_s=0.2)
    with cluster_process(tmp_path_factory.mktemp("cluster"), config) as running:
        yield running.kubeconfig


@pytest.fixture
def kubectl(kubeconfig: Path) -> Iterator[Kubectl]:
    """kubectl in a namespace of the test's own."""
    kube = Kubectl(kubeconfig, f"test-{uuid.uuid4().hex[:10]}", IMAGE)
    kube("create", "namespace", kube.namespace)
    yield kube
    kube("delete", "namespace", kube.namespace, "--wait=false")


@pytest.fixture
def embedded_only() -> None:
    """For what only the embedded cluster promises."""
    if REAL:
        pytest.skip("holds on the embedded cluster only")
