"""An embedded cluster for all tests here that need one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from longshore_client import jobs
from longshore_client.kube import Kube
from longshore_client.target import Target
from longshore_devcluster.launcher import cluster_process
from tests.contract.cli.manifests import claim, job

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 180.0


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An embedded cluster that knows RLJobs; no operator runs, so that tests write the status themselves."""
    with cluster_process(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster.kubeconfig


@pytest.fixture(scope="session")
def kube(kubeconfig: Path) -> Kube:
    """A client of the cluster."""
    return Target(kubeconfig).connect()


@pytest.fixture(scope="session")
def crd(kube: Kube) -> None:
    """RLJobs are known."""
    (definition,) = jobs.read_manifest(ROOT / "crds" / "longshore.dev_rljobs.yaml")
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    kube.request("POST", path, definition)
    name = definition["metadata"]["name"]
    for _, item in kube.watch(path, f"metadata.name={name}", timeout_s=TIMEOUT_S):
        if any(
            c["type"] == "Established" and c["status"] == "True" for c in item.get("status", {}).get("conditions", [])
        ):
            return
    raise AssertionError("the CRD was not established")


@pytest.fixture
def manifest(tmp_path: Path, crd: None) -> Path:
    """A small job with a claim of its own."""
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump_all([claim("shared"), job("demo")]))
    return path


@pytest.fixture(autouse=True)
def no_jobs_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Jobs of a test go with it."""
    yield
    if "crd" in request.fixturenames:
        kube: Kube = request.getfixturevalue("kube")
        for item in kube.request("GET", kube.jobs_path())["items"]:
            kube.request("DELETE", kube.job_path(item["metadata"]["name"]))
