"""Libraries: the Python client, kopf and Helm."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from kubernetes import client, config, watch

from tests.contract.kube_api.api import Api, widget

GROUP = "contract.example.com"


@pytest.fixture
def python_client(kubeconfig: str) -> client.ApiClient:
    return config.new_client_from_config(kubeconfig)


def test_the_python_client_reads_and_writes(python_client: client.ApiClient, namespace: str) -> None:
    core = client.CoreV1Api(python_client)
    body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="a"), data={"k": "v"})
    created = core.create_namespaced_config_map(namespace, body)
    created.data = {"k": "w"}
    core.replace_namespaced_config_map("a", namespace, created)
    core.patch_namespaced_config_map("a", namespace, {"data": {"n": "1"}})
    assert core.read_namespaced_config_map("a", namespace).data == {"k": "w", "n": "1"}
    core.delete_namespaced_config_map("a", namespace)
    with pytest.raises(client.ApiException) as error:
        core.read_namespaced_config_map("a", namespace)
    assert error.value.status == 404
    assert client.VersionApi(python_client).get_code().major == "1"


def test_the_python_client_watches(python_client: client.ApiClient, namespace: str) -> None:
    core = client.CoreV1Api(python_client)
    core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="a")))
    stream = watch.Watch().stream(
        core.list_namespaced_config_map, namespace, field_selector="metadata.name=a", timeout_seconds=1
    )
    assert [(e["type"], e["object"].metadata.name) for e in stream] == [("ADDED", "a")]


def test_the_python_client_handles_custom_objects(
    python_client: client.ApiClient, widgets: str, namespace: str
) -> None:
    custom = client.CustomObjectsApi(python_client)
    custom.create_namespaced_custom_object(GROUP, "v1", namespace, "widgets", widget())
    where = (GROUP, "v1", namespace, "widgets", "w")
    custom.patch_namespaced_custom_object(*where, {"spec": {"size": "large"}})
    custom.patch_namespaced_custom_object_status(*where, {"status": {"phase": "Ready"}})
    found = custom.get_namespaced_custom_object(*where)
    assert (found["spec"]["size"], found["status"]["phase"]) == ("large", "Ready")


OPERATOR = """
    import kopf

    @kopf.on.create("contract.example.com", "v1", "widgets")
    def created(spec, patch, **_):
        patch.status["phase"] = "Created " + spec["size"]

    @kopf.on.update("contract.example.com", "v1", "widgets", field="spec")
    def updated(spec, patch, body, **_):
        patch.status["phase"] = "Updated " + spec["size"]
        kopf.event(body, type="Normal", reason="Changed", message="changed")

    @kopf.on.delete("contract.example.com", "v1", "widgets")
    def deleted(**_):
        pass
"""


def test_kopf_handles_a_life(
    api: Api, widgets: str, widget_path: str, namespace: str, kubeconfig: str, tmp_path: Path
) -> None:
    program = tmp_path / "operator.py"
    program.write_text(textwrap.dedent(OPERATOR))
    command = [sys.executable, "-m", "kopf", "run", "-n", namespace, "--standalone", str(program)]
    log = (tmp_path / "log").open("w")
    operator = subprocess.Popen(
        command, env={"KUBECONFIG": kubeconfig, "PATH": os.environ["PATH"]}, stdout=log, stderr=log
    )
    try:
        with api.watching(widget_path) as events:
            api.post(widget_path, widget())
            events.until(lambda event: event["object"].get("status", {}).get("phase") == "Created small", 60)
            api.patch(f"{widget_path}/w", {"spec": {"size": "large"}})
            events.until(lambda event: event["object"].get("status", {}).get("phase") == "Updated large", 60)
            assert api.get(f"{widget_path}/w").json["metadata"]["finalizers"]
            with api.watching(f"/api/v1/namespaces/{namespace}/events") as reports:
                reports.until(lambda event: event["object"]["reason"] == "Changed", 60)
            api.delete(f"{widget_path}/w")
            events.until(lambda event: event["type"] == "DELETED", 60)
    finally:
        operator.terminate()
        operator.wait(20)
        log.close()


TEMPLATE = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: {{ .Release.Name }}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}}
spec:
  replicas: {{ .Values.replicas }}
  selector: {matchLabels: {app: {{ .Release.Name }}}}
  template:
    metadata: {labels: {app: {{ .Release.Name }}}}
    spec: {containers: [{name: main, image: "example.com/x:{{ .Values.tag }}"}]}
---
apiVersion: contract.example.com/v1
kind: Widget
metadata: {name: {{ .Release.Name }}}
spec: {size: small}
"""


@pytest.fixture
def chart(tmp_path: Path) -> str:
    directory = tmp_path / "chart"
    (directory / "templates").mkdir(parents=True)
    (directory / "Chart.yaml").write_text("apiVersion: v2\nname: contract\nversion: 0.1.0\n")
    (directory / "values.yaml").write_text("replicas: 0\ntag: '1'\n")
    (directory / "templates" / "all.yaml").write_text(TEMPLATE)
    return str(directory)


def test_helm_installs_upgrades_and_uninstalls(
    api: Api, widgets: str, namespace: str, kubeconfig: str, chart: str
) -> None:
    helm = pytest.importorskip("helm_python")
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/demo"
    with helm.Config(namespace=namespace, kubeconfig_path=kubeconfig) as releases:
        assert releases.install(chart, "demo", {}, timeout=30)["status"] == "deployed"
        assert api.get(path).status == 200
        assert releases.upgrade(chart, "demo", {"tag": "2"}, timeout=30)["revision"] == 2
        image = api.get(path).json["spec"]["template"]["spec"]["containers"][0]["image"]
        assert image == "example.com/x:2"
        assert [release["name"] for release in releases.list()] == ["demo"]
        releases.rollback("demo", version=1)
        image = api.get(path).json["spec"]["template"]["spec"]["containers"][0]["image"]
        assert image == "example.com/x:1"
        releases.uninstall("demo")
    assert api.get(path).status == 404
    assert api.get(f"/apis/{GROUP}/v1/namespaces/{namespace}/widgets/demo").status == 404
