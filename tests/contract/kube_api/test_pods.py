"""Pods: defaults, binding, deletion. They name a scheduler that does not exist, so nothing runs them."""

from typing import Any

import pytest

from tests.contract.kube_api.api import Api


@pytest.fixture
def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "example.com/x", "ports": [{"containerPort": 80}]}
    return {
        "metadata": {"name": name, "labels": {"app": "p"}},
        "spec": {"schedulerName": "none", "containers": [container], **spec},
    }


def _bind(api: Api, pods: str, name: str = "p") -> int:
    target = {"apiVersion": "v1", "kind": "Node", "name": "contract-node"}
    return api.post(f"{pods}/{name}/binding", {"metadata": {"name": name}, "target": target}).status


def test_a_new_pod_is_filled_in(api: Api, pods: str) -> None:
    created = api.post(pods, pod()).json
    spec, container = created["spec"], created["spec"]["containers"][0]
    assert created["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert spec["restartPolicy"] == "Always" and spec["terminationGracePeriodSeconds"] == 30
    assert spec["serviceAccountName"] == "default" and spec["dnsPolicy"] == "ClusterFirst"
    assert container["imagePullPolicy"] == "Always" and container["ports"][0]["protocol"] == "TCP"
    keys = {t["key"]: t["tolerationSeconds"] for t in spec["tolerations"]}
    assert keys == {"node.kubernetes.io/not-ready": 300, "node.kubernetes.io/unreachable": 300}


def test_a_new_pod_mounts_its_service_account(api: Api, pods: str) -> None:
    spec = api.post(pods, pod()).json["spec"]
    mount = spec["containers"][0]["volumeMounts"][0]
    assert mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount" and mount["readOnly"]
    sources = spec["volumes"][0]["projected"]["sources"]
    assert [next(iter(s)) for s in sources] == ["serviceAccountToken", "configMap", "downwardAPI"]
    bare = api.post(pods, pod("bare", automountServiceAccountToken=False)).json["spec"]
    assert "volumes" not in bare


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"requests": {"cpu": "1000m"}, "limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"requests": {"cpu": "500m"}, "limits": {"cpu": "1", "memory": "1Gi"}}, "Burstable"),
        ({"limits": {"example.com/gpu": "1"}}, "BestEffort"),
    ],
)
def test_quality_of_service_follows_resources(api: Api, pods: str, resources: Any, expected: str) -> None:
    body = pod()
    body["spec"]["containers"][0]["resources"] = resources
    created = api.post(pods, body).json
    assert created["status"]["qosClass"] == expected


def test_a_pod_cannot_become_another(api: Api, pods: str) -> None:
    api.post(pods, pod())
    image = {"spec": {"containers": [{"name": "c", "image": "example.com/x:2"}]}}
    kind = "application/strategic-merge-patch+json"
    assert api.patch(f"{pods}/p", image, kind).json["metadata"]["generation"] == 2
    command = {"spec": {"containers": [{"name": "c", "command": ["a"]}]}}
    refused = api.patch(f"{pods}/p", command, kind)
    assert refused.status == 422
    assert "pod updates may not change fields other than" in refused.json["message"]


def test_a_gated_pod_may_be_sent_to_fewer_nodes_and_no_other_pod(api: Api, pods: str) -> None:
    api.post(pods, pod(schedulingGates=[{"name": "example.com/gate"}], nodeSelector={"zone": "a"}))
    kind = "application/merge-patch+json"
    assert api.patch(f"{pods}/p", {"spec": {"nodeSelector": {"zone": "b"}}}, kind).status == 422
    narrowed = {"spec": {"nodeSelector": {"zone": "a", "rack": "1"}, "schedulingGates": []}}
    assert api.patch(f"{pods}/p", narrowed, kind).json["spec"]["nodeSelector"] == {"zone": "a", "rack": "1"}
    assert api.patch(f"{pods}/p", {"spec": {"nodeSelector": {"host": "2"}}}, kind).status == 422


def test_a_pod_is_bound_once(api: Api, pods: str) -> None:
    api.post(pods, pod())
    assert _bind(api, pods) == 201
    bound = api.get(f"{pods}/p").json
    assert bound["spec"]["nodeName"] == "contract-node"
    assert [(c["type"], c["status"]) for c in bound["status"]["conditions"]] == [("PodScheduled", "True")]
    assert _bind(api, pods) == 409


def test_a_pod_without_node_is_deleted_at_once(api: Api, pods: str) -> None:
    api.post(pods, pod())
    assert api.delete(f"{pods}/p").json["kind"] == "Pod"
    assert api.get(f"{pods}/p").status == 404


def test_a_pod_on_a_node_has_time_to_end(api: Api, pods: str) -> None:
    api.post(pods, pod())
    _bind(api, pods)
    ending = api.delete(f"{pods}/p", {"gracePeriodSeconds": 25}).json
    assert ending["metadata"]["deletionGracePeriodSeconds"] == 25 and ending["metadata"]["deletionTimestamp"]
    assert api.get(f"{pods}/p").status == 200
    assert api.delete(f"{pods}/p", gracePeriodSeconds=0).status == 200
    assert api.get(f"{pods}/p").status == 404


def test_logs_of_a_pod_without_node_are_empty(api: Api, pods: str) -> None:
    api.post(pods, pod())
    answer = api.get(f"{pods}/p/log")
    assert (answer.status, answer.text) == (204, "")


def test_exec_needs_a_node(api: Api, pods: str) -> None:
    api.post(pods, pod())
    answer = api.get(f"{pods}/p/exec", command="ls", stdout="true")
    assert (answer.status, answer.json["message"]) == (400, "pod p does not have a host assigned")


def test_a_pod_is_selected_by_its_fields(api: Api, pods: str) -> None:
    api.post(pods, pod("here"))
    api.post(pods, pod("there"))
    _bind(api, pods, "here")
    found = api.get(pods, fieldSelector="spec.nodeName=contract-node,status.phase!=Running").json["items"]
    assert [p["metadata"]["name"] for p in found] == ["here"]


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        ({"spec": {"containers": []}}, 422, "spec.containers: Required value"),
        ({"spec": {"containers": [{"name": "C_", "image": "x"}]}}, 422, "spec.containers[0].name: Invalid value"),
        (
            {"spec": {"restartPolicy": "Sometimes", "containers": [{"name": "c", "image": "x"}]}},
            422,
            "supported values",
        ),
        (
            {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "x"}}}]}},
            400,
            "quantities must match",
        ),
        ({"spec": {"containers": [{"name": "c", "image": 1}]}}, 400, "cannot unmarshal number"),
    ],
)
def test_invalid_pods_are_refused(api: Api, pods: str, body: Any, status: int, part: str) -> None:
    answer = api.post(pods, {"metadata": {"name": "u"}, **body})
    assert answer.status == status and part in answer.json["message"]


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("4096Mi", "4Gi"),
        ("1.5Gi", "1536Mi"),
        ("1024", "1024"),
        ("1000M", "1G"),
        ("0.5Ki", "512"),
        ("0.1Gi", "107374182400m"),
        ("12e6", "12e6"),
        ("1.5e3", "1500"),
        (2, "2"),
        (0.5, "500m"),
        ("0", "0"),
    ],
)
def test_quantities_are_stored_in_their_shortest_form(api: Api, namespace: str, written: Any, stored: str) -> None:
    limits = {"ephemeral-storage": written}
    spec = {"containers": [{"name": "c", "image": "x", "resources": {"limits": limits}}]}
    path = f"/api/v1/namespaces/{namespace}/pods"
    answer = api.post(path, {"metadata": {"name": "p"}, "spec": spec}, dryRun="All")
    assert answer.status == 201, answer.text
    assert answer.json["spec"]["containers"][0]["resources"]["limits"] == {"ephemeral-storage": stored}
