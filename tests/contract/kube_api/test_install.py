"""The chart on a real API server: installed, upgraded, rolled back, removed; a failure leaves nothing behind."""

import base64
import gzip
import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from longshore.api import names
from longshore_cli import chart
from longshore_cli.chart import ChartOptions, Cluster
from longshore_cli.errors import CliError
from longshore_cli.examples import CHART
from longshore_client.kube import Kube
from longshore_client.target import Target
from tests.contract.kube_api.api import Api, eventually
from tests.contract.kube_api.test_definitions import quickstart_job

helm = pytest.importorskip("helm_python")

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/rljobs.longshore.dev"
KINDS = {
    "/api/v1": ("serviceaccounts", "services", "secrets", "configmaps"),
    "/apis/apps/v1": ("deployments",),
    "/apis/rbac.authorization.k8s.io/v1": ("roles", "rolebindings"),
}
CLUSTER_KINDS = {
    "/apis/rbac.authorization.k8s.io/v1": ("clusterroles", "clusterrolebindings"),
    "/apis/admissionregistration.k8s.io/v1": (
        "validatingadmissionpolicies", "validatingadmissionpolicybindings",
    ),
}  # fmt: skip


class Installer:
    """Installs a chart into a namespace of the test's own, as the command line does."""

    def __init__(self, api: Api, kubeconfig: str, namespace: str) -> None:
        self.api, self.namespace = api, namespace
        self._cluster = Cluster(kubeconfig, None)
        self._kube = Target(Path(kubeconfig)).connect()

    def install(self, directory: Path | None = None, **values: Any) -> str:
        options = ChartOptions(directory or CHART, self.namespace, {"replicas": 0, **values})
        return chart.install(self._kube, self._cluster, options)

    def roll_back(self) -> None:
        with helm.Config(namespace=self.namespace, kubeconfig_path=self._cluster.kubeconfig) as release:
            release.rollback(chart.RELEASE, version=1, timeout=60)

    def uninstall(self) -> bool:
        return chart.uninstall(self._cluster, self.namespace)

    def objects(self) -> set[str]:
        """Everything of the release that the cluster holds, by its path."""
        found = set()
        for prefix, kinds in KINDS.items():
            for kind in kinds:
                path = f"{prefix}/namespaces/{self.namespace}/{kind}"
                found |= {f"{kind}/{name}" for name in _names(self.api.get(path)) if "longshore" in name}
        selector = "app.kubernetes.io/part-of=longshore,app.kubernetes.io/managed-by=Helm"
        for prefix, kind in [(prefix, kind) for prefix, kinds in CLUSTER_KINDS.items() for kind in kinds]:
            items = self.api.get(f"{prefix}/{kind}", labelSelector=selector).json["items"]
            found |= {
                f"{kind}/{one['metadata']['name']}"
                for one in items
                if one["metadata"]["annotations"]["meta.helm.sh/release-namespace"] == self.namespace
            }
        return found

    def namespace_exists(self) -> bool:
        found = self.api.get(f"/api/v1/namespaces/{self.namespace}")
        return found.status == 200 and "deletionTimestamp" not in found.json["metadata"]


def _names(answer: Any) -> list[str]:
    return [one["metadata"]["name"] for one in answer.json.get("items", [])]


@pytest.fixture
def installer(api: Api, kubeconfig: str) -> Iterator[Installer]:
    with installing(api, kubeconfig) as one:
        yield one


@contextmanager
def installing(api: Api, kubeconfig: str) -> Iterator[Installer]:
    """An installer; in the end even what stays on purpose is removed: the definition, and with it every job."""
    if api.get(CRD).status == 200:
        pytest.skip("the cluster has Longshore installed")
    installer = Installer(api, kubeconfig, f"install-{uuid.uuid4().hex[:8]}")
    yield installer
    installer.uninstall()
    api.delete(f"/api/v1/namespaces/{installer.namespace}")
    api.delete(CRD)
    _until_deleted(api, CRD)


def broken_chart(tmp_path: Path, file: str, old: str, new: str) -> Path:
    """The chart with something in it that an API server refuses."""
    copy = tmp_path / "broken" / "longshore"
    shutil.copytree(CHART, copy)
    text = (copy / file).read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new))
    return copy


@pytest.fixture(params=["definition", "deployment"])
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "definition":
        return broken_chart(tmp_path, "files/rljob-crd.yaml", "shortNames:\n    - rlj", "shortNames: 5")
    return broken_chart(
        tmp_path, "templates/deployment.yaml", "terminationGracePeriodSeconds: 30", "restartPolicy: Sometimes"
    )


def test_a_chart_is_installed_upgraded_rolled_back_and_removed(installer: Installer, api: Api) -> None:
    assert installer.install() == "installed"
    assert api.get(CRD).status == 200
    assert installer.install(maxConcurrency=4) == "upgraded to revision 2"
    deployments = api.get(f"/apis/apps/v1/namespaces/{installer.namespace}/deployments").json["items"]
    assert "--max-concurrency=4" in deployments[0]["spec"]["template"]["spec"]["containers"][0]["command"]
    installer.roll_back()
    deployments = api.get(f"/apis/apps/v1/namespaces/{installer.namespace}/deployments").json["items"]
    assert "--max-concurrency=4" not in deployments[0]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert installer.uninstall()
    assert installer.objects() == set()
    assert api.get(CRD).status == 200, "jobs outlive the operator"
    assert installer.install() == "installed", "what was kept is taken over"


def test_jobs_outlive_an_upgrade_a_rollback_and_the_removal_of_the_chart(
    installer: Installer, api: Api, namespace: str
) -> None:
    installer.install()
    job = quickstart_job() | {"apiVersion": names.API_VERSION, "metadata": {"name": "kept"}}
    jobs = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}"
    created = api.post(jobs, job)
    assert created.status == 201, created.text
    for change in (lambda: installer.install(maxConcurrency=4), installer.roll_back, installer.uninstall):
        change()
        kept = api.get(f"{jobs}/kept").json["metadata"]
        assert (kept["uid"], kept["generation"]) == (created.json["metadata"]["uid"], 1)


def test_a_failed_installation_leaves_nothing_and_can_be_repeated(installer: Installer, api: Api, broken: Path) -> None:
    for _ in range(2):
        with pytest.raises(CliError, match="Helm could not install the chart"):
            installer.install(broken)
        assert installer.objects() == set()
        definition = api.get(CRD)
        assert definition.status == 404 or "deletionTimestamp" in definition.json["metadata"]
        assert not installer.namespace_exists()
    _until_deleted(api, f"/api/v1/namespaces/{installer.namespace}")
    assert installer.install() == "installed"


def test_a_failed_install_removes_its_namespace_though_an_older_one_was_terminating(
    installer: Installer, api: Api, broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/api/v1/namespaces/{installer.namespace}"
    hold = ["contract.example.com/hold"]
    assert api.post("/api/v1/namespaces", {"metadata": {"name": installer.namespace, "finalizers": hold}}).status == 201
    api.delete(path)
    find = Kube.find

    def find_before_it_is_gone(kube: Kube, what: str) -> Any:
        found = find(kube, what)
        if what == path and found is not None and found["metadata"].get("finalizers") == hold:
            assert "deletionTimestamp" in found["metadata"]
            assert api.patch(path, {"metadata": {"finalizers": None}}).status == 200
            _until_deleted(api, path)
        return found

    monkeypatch.setattr(Kube, "find", find_before_it_is_gone)
    with pytest.raises(CliError, match="Helm could not install the chart"):
        installer.install(broken)
    assert not installer.namespace_exists()


def test_a_failed_upgrade_leaves_what_worked(installer: Installer, api: Api, broken: Path) -> None:
    installer.install(maxConcurrency=4)
    before = installer.objects()
    uid = api.get(f"/apis/apps/v1/namespaces/{installer.namespace}/deployments").json["items"][0]["metadata"]["uid"]
    with pytest.raises(CliError):
        installer.install(broken, maxConcurrency=8)
    kept = api.get(f"/apis/apps/v1/namespaces/{installer.namespace}/deployments").json["items"][0]
    assert kept["metadata"]["uid"] == uid
    assert "--max-concurrency=4" in kept["spec"]["template"]["spec"]["containers"][0]["command"]
    assert before <= installer.objects()
    assert installer.install(maxConcurrency=16).startswith("upgraded to revision")


def test_an_upgrade_that_was_interrupted_does_not_block_the_next(installer: Installer, api: Api) -> None:
    installer.install()
    installer.install(maxConcurrency=4)
    path = f"/api/v1/namespaces/{installer.namespace}/secrets/sh.helm.release.v1.longshore.v2"
    stored = api.get(path).json
    release = json.loads(gzip.decompress(base64.b64decode(base64.b64decode(stored["data"]["release"]))))
    release["info"]["status"] = "pending-upgrade"
    packed = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(release).encode()))).decode()
    change = {"metadata": {"labels": {"status": "pending-upgrade"}}, "data": {"release": packed}}
    assert api.patch(path, change).status == 200
    assert installer.install(maxConcurrency=8).startswith("upgraded to revision")


def _until_deleted(api: Api, path: str) -> None:
    eventually(f"{path} is gone", lambda: api.get(path).status == 404, 60)
