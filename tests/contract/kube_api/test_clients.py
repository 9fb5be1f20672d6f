"""Libraries: the Python client, kopf and Helm."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from kubernetes import client, config

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
