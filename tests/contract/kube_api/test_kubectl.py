"""The real kubectl against the server."""

import json
from typing import Any

import pytest

from tests.contract.kube_api.conftest import Kubectl

WIDGET = """
apiVersion: contract.example.com/v1
kind: Widget
metadata: {name: w}
spec: {size: small, ports: [{port: 80}], note: hello}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 0
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: main, image: 'example.com/web:1', ports: [{containerPort: 8080}], env: [{name: A, value: '1'}]}
      - {name: side, image: 'example.com/side:1'}
"""


BOTH = pytest.mark.parametrize(
    ("manifest", "target"), [(WIDGET, "widget/w"), (DEPLOYMENT, "deployment/web")], ids=["custom", "built-in"]
)


def _object(kubectl: Kubectl, target: str) -> Any:
    return json.loads(kubectl("get", target, "-o", "json", "--show-managed-fields").stdout)


@BOTH
def test_apply_creates_then_leaves_alone(kubectl: Kubectl, widgets: str, manifest: str, target: str) -> None:
    assert kubectl("apply", "-f", "-", stdin=manifest).stdout.endswith("created\n")
    first = _object(kubectl, target)
    kubectl("apply", "-f", "-", stdin=manifest)
    again = _object(kubectl, target)
    assert again["spec"] == first["spec"]
    # The resource version would not do: the controller of a Deployment writes its status meanwhile.
    assert again["metadata"]["generation"] == first["metadata"]["generation"] == 1


def test_apply_removes_what_a_manifest_no_longer_has(kubectl: Kubectl, widgets: str) -> None:
    kubectl("apply", "-f", "-", stdin=WIDGET)
    kubectl("apply", "-f", "-", stdin=WIDGET.replace(", note: hello", ", tags: [a]"))
    spec = json.loads(kubectl("get", "widget", "w", "-o", "json").stdout)["spec"]
    assert "note" not in spec and spec["tags"] == ["a"]


def test_apply_merges_containers(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    kubectl("set", "env", "deployment/web", "--containers=main", "B=2")
    kubectl("scale", "deployment/web", "--replicas=0")
    kubectl("apply", "-f", "-", stdin=DEPLOYMENT.replace("web:1", "web:2"))
    main, side = _object(kubectl, "deployment/web")["spec"]["template"]["spec"]["containers"]
    assert (main["image"], side["image"]) == ("example.com/web:2", "example.com/side:1")
    assert main["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]


@BOTH
def test_apply_moves_from_the_client_to_the_server(kubectl: Kubectl, widgets: str, manifest: str, target: str) -> None:
    kubectl("apply", "-f", "-", stdin=manifest)
    moved = kubectl("apply", "--server-side", "-f", "-", stdin=manifest)
    assert "serverside-applied" in moved.stdout and "Warning" not in moved.stderr
    found = _object(kubectl, target)
    owners = {(e["manager"], e["operation"]) for e in found["metadata"]["managedFields"]}
    assert ("kubectl", "Apply") in owners and ("kubectl-client-side-apply", "Update") not in owners


def test_apply_explains_what_is_wrong(kubectl: Kubectl, widgets: str) -> None:
    wrong = kubectl("apply", "-f", "-", stdin=WIDGET.replace("note", "colour"), check=False)
    assert wrong.returncode == 1 and 'unknown field "spec.colour"' in wrong.stderr


def test_get_prints_the_columns(kubectl: Kubectl, widgets: str) -> None:
    kubectl("apply", "-f", "-", stdin=WIDGET)
    header, line = kubectl("get", "cwd").stdout.splitlines()
    assert header.split() == ["NAME", "SIZE", "REPLICAS", "READY", "AGE"]
    assert line.split()[:3] == ["w", "small", "1"]
    assert "hello" in kubectl("get", "cwd", "-o", "wide").stdout
    assert "widget.contract.example.com/w" in kubectl("get", "contract", "-o", "name").stdout


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("configmap", "x", "--from-literal=k=v"), "configmap"),
        (("secret", "generic", "x", "--from-literal=k=v"), "secret"),
        (("deployment", "x", "--image=example.com/x", "--replicas=0"), "deployment"),
        (("serviceaccount", "x"), "serviceaccount"),
        (("role", "x", "--verb=get", "--resource=pods"), "role"),
        (("rolebinding", "x", "--role=x", "--serviceaccount=default:default"), "rolebinding"),
    ],
)
def test_create_speaks_protobuf(kubectl: Kubectl, arguments: tuple[str, ...], kind: str) -> None:
    kubectl("create", *arguments)
    assert kubectl("get", kind, "x", "-o", "name").stdout.endswith("/x\n")
    kubectl("delete", kind, "x", "--wait=false")


def test_label_annotate_patch_and_delete(kubectl: Kubectl, widgets: str) -> None:
    kubectl("apply", "-f", "-", stdin=WIDGET)
    kubectl("label", "widget", "w", "tier=one")
    kubectl("annotate", "widget", "w", "a=b")
    kubectl("patch", "widget", "w", "--type=merge", "-p", '{"spec":{"size":"large"}}')
    found = json.loads(kubectl("get", "widget", "w", "-o", "json").stdout)
    assert found["spec"]["size"] == "large"
    assert found["metadata"]["labels"] == {"tier": "one"}
    assert "deleted" in kubectl("delete", "widget", "w").stdout
    assert "NotFound" in kubectl("get", "widget", "w", check=False).stderr


def test_describe_explain_and_api_resources(kubectl: Kubectl, widgets: str) -> None:
    kubectl("apply", "-f", "-", stdin=WIDGET)
    assert "Size:" in kubectl("describe", "widget", "w").stdout
    assert "How big." in kubectl("explain", "widget.spec.size").stdout
    assert "containers" in kubectl("explain", "pod.spec").stdout
    assert "widgets" in kubectl("api-resources", "--api-group=contract.example.com").stdout


def test_diff_and_dry_run(kubectl: Kubectl, widgets: str) -> None:
    kubectl("apply", "-f", "-", stdin=WIDGET)
    changed = WIDGET.replace("hello", "bye")
    assert "bye" in kubectl("diff", "-f", "-", stdin=changed, check=False).stdout
    kubectl("apply", "--dry-run=server", "-f", "-", stdin=changed)
    assert json.loads(kubectl("get", "widget", "w", "-o", "json").stdout)["spec"]["note"] == "hello"


def test_auth_questions(kubectl: Kubectl) -> None:
    assert kubectl("auth", "can-i", "create", "pods").stdout == "yes\n"
    assert "Username" in kubectl("auth", "whoami").stdout
    kubectl("create", "serviceaccount", "bot")
    assert kubectl("create", "token", "bot").stdout.count(".") == 2
