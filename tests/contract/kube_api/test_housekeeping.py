"""What the cluster does by itself: namespaces, owners, aggregated roles."""

from typing import Any

import pytest

from tests.contract.kube_api.api import Api


@pytest.fixture
def config_maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def _owned(name: str, owner: Any, *, block: bool = False) -> dict[str, Any]:
    metadata = owner["metadata"]
    reference = {
        "apiVersion": "v1", "kind": "ConfigMap", "name": metadata["name"], "uid": metadata["uid"],
        "blockOwnerDeletion": block,
    }  # fmt: skip
    return {"metadata": {"name": name, "labels": {"family": "yes"}, "ownerReferences": [reference]}}


def _until_deleted(events: Any, *names: str) -> list[str]:
    """The order in which objects went."""
    count = 0
    while True:
        count += 1
        gone = [e["object"]["metadata"]["name"] for e in events.take(count) if e["type"] == "DELETED"]
        if set(names) <= set(gone):
            return [name for name in gone if name in names]


def test_a_new_namespace_is_furnished(api: Api, namespace: str) -> None:
    found = api.get(f"/api/v1/namespaces/{namespace}").json
    assert found["metadata"]["labels"]["kubernetes.io/metadata.name"] == namespace
    assert found["status"]["phase"] == "Active" and found["spec"]["finalizers"] == ["kubernetes"]
    with api.watching(f"/api/v1/namespaces/{namespace}/serviceaccounts") as events:
        assert events.take(1)[0]["object"]["metadata"]["name"] == "default"
    with api.watching(f"/api/v1/namespaces/{namespace}/configmaps") as events:
        root = events.take(1)[0]["object"]
    assert root["metadata"]["name"] == "kube-root-ca.crt" and "BEGIN CERTIFICATE" in root["data"]["ca.crt"]


def test_a_deleted_namespace_goes_with_its_content(api: Api, namespace: str, config_maps: str) -> None:
    api.post(config_maps, {"metadata": {"name": "held", "finalizers": ["example.com/hold"]}})
    with api.watching("/api/v1/namespaces", fieldSelector=f"metadata.name={namespace}") as events:
        ending = api.delete(f"/api/v1/namespaces/{namespace}").json
        assert ending["status"]["phase"] == "Terminating"
        refused = api.post(config_maps, {"metadata": {"name": "late"}})
        assert refused.status == 403
        assert refused.json["message"].endswith("because it is being terminated")
        assert refused.json["details"]["causes"][0]["reason"] == "NamespaceTerminating"
        with api.watching(config_maps, fieldSelector="metadata.name=held") as held:
            held.until(lambda event: "deletionTimestamp" in event["object"]["metadata"])
        api.patch(f"{config_maps}/held", {"metadata": {"finalizers": None}})
        assert _until_deleted(events, namespace) == [namespace]


def test_the_default_namespace_stays(api: Api) -> None:
    answer = api.delete("/api/v1/namespaces/default")
    assert answer.status == 403
    assert answer.json["message"] == 'namespaces "default" is forbidden: this namespace may not be deleted'


def test_dependents_follow_their_owner(api: Api, config_maps: str) -> None:
    owner = api.post(config_maps, {"metadata": {"name": "owner"}}).json
    api.post(config_maps, _owned("dependent", owner))
    with api.watching(config_maps, labelSelector="family=yes") as events:
        api.delete(f"{config_maps}/owner", {"propagationPolicy": "Background"})
        _until_deleted(events, "dependent")


def test_an_owner_that_never_was_dooms_its_dependents(api: Api, config_maps: str) -> None:
    ghost = {"metadata": {"name": "ghost", "uid": "00000000-0000-0000-0000-00000000dead"}}
    with api.watching(config_maps, labelSelector="family=yes") as events:
        api.post(config_maps, _owned("dependent", ghost))
        _until_deleted(events, "dependent")


def test_orphans_stay_without_owner(api: Api, config_maps: str) -> None:
    owner = api.post(config_maps, {"metadata": {"name": "owner"}}).json
    api.post(config_maps, _owned("dependent", owner))
    with api.watching(config_maps) as events:
        api.delete(f"{config_maps}/owner", {"propagationPolicy": "Orphan"})
        _until_deleted(events, "owner")
    assert "ownerReferences" not in api.get(f"{config_maps}/dependent").json["metadata"]


def test_in_the_foreground_dependents_go_first(api: Api, config_maps: str) -> None:
    owner = api.post(config_maps, {"metadata": {"name": "owner"}}).json
    api.post(config_maps, _owned("dependent", owner, block=True))
    with api.watching(config_maps) as events:
        api.delete(f"{config_maps}/owner", {"propagationPolicy": "Foreground"})
        assert _until_deleted(events, "owner", "dependent") == ["dependent", "owner"]


def test_two_controllers_are_one_too_many(api: Api, config_maps: str) -> None:
    owners = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "controller": True}
        for name, uid in (("a", "1"), ("b", "2"))
    ]
    answer = api.post(config_maps, {"metadata": {"name": "c", "ownerReferences": owners}})
    assert answer.status == 422 and "Only one reference can have Controller set to true" in answer.json["message"]


def test_roles_aggregate_by_label(api: Api, namespace: str) -> None:
    path, label = "/apis/rbac.authorization.k8s.io/v1/clusterroles", f"{namespace}.example.com/aggregate"
    whole, part = f"{namespace}-whole", f"{namespace}-part"
    selector = {"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]}
    rule = {"apiGroups": ["contract.example.com"], "resources": ["widgets"], "verbs": ["get"]}
    try:
        with api.watching(path, fieldSelector=f"metadata.name={whole}") as events:
            api.post(path, {"metadata": {"name": whole}, "aggregationRule": selector, "rules": []})
            api.post(path, {"metadata": {"name": part, "labels": {label: "true"}}, "rules": [rule]})
            events.until(lambda event: event["object"].get("rules") == [rule])
    finally:
        api.delete(f"{path}/{whole}")
        api.delete(f"{path}/{part}")


def test_a_lease_is_created_by_its_first_update(api: Api, namespace: str) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/l"
    body = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a", "renewTime": "2026-01-01T00:00:00.000000Z"}}
    created = api.put(path, body)
    assert created.status == 201
    assert api.put(path, body).status == 422
    assert api.put(path, {**created.json, "spec": {"holderIdentity": "b"}}).status == 200
    assert api.put(path, {**created.json, "spec": {"holderIdentity": "c"}}).status == 409
    assert api.put(path, {"metadata": {"name": "l"}, "spec": {"renewTime": "2026-01-01T00:00:05Z"}}).status == 400


def test_an_event_with_a_fine_time_says_who_acted_and_how(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/events"
    about = {"kind": "Pod", "name": "p", "namespace": namespace}
    event = {"involvedObject": about, "reason": "Started", "type": "Normal", "eventTime": "2026-01-01T00:00:00.000001Z"}
    refused = api.post(path, {"metadata": {"name": "e"}, **event})
    missing = {cause["field"] for cause in refused.json["details"]["causes"] if cause["message"] == "Required value"}
    assert missing == {"reportingComponent", "reportingInstance", "action"}
    who = {"reportingComponent": "tester", "reportingInstance": "tester-1", "action": "Start"}
    assert api.post(path, {"metadata": {"name": "e"}, **event, **who}).status == 201
