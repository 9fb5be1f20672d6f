"""Server-side apply and field ownership."""

from typing import Any

from tests.contract.kube_api.api import WIDGET, Api, Json


def config(**spec: Any) -> dict[str, Any]:
    return {**WIDGET, "metadata": {"name": "w"}, "spec": spec}


def _fields(obj: Json, manager: str, operation: str = "Apply") -> Json:
    entries = obj["metadata"]["managedFields"]
    return next(e["fieldsV1"] for e in entries if (e["manager"], e["operation"]) == (manager, operation))


def test_apply_creates_and_owns_what_it_lists(api: Api, widget_path: str) -> None:
    answer = api.apply(f"{widget_path}/w", config(size="small"), "one")
    assert answer.status == 201
    assert answer.json["spec"] == {"size": "small", "replicas": 1, "maxReplicas": 10}
    assert _fields(answer.json, "one") == {"f:spec": {"f:size": {}}}
    assert api.apply(f"{widget_path}/w", config(size="small"), "one").status == 200


def test_a_creator_owns_defaults_too(api: Api, widget_path: str) -> None:
    body = {**config(size="small"), "metadata": {"name": "w", "labels": {"a": "b"}}}
    created = api.post(widget_path, body, fieldManager="creator").json
    assert _fields(created, "creator", "Update") == {
        "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
        "f:spec": {".": {}, "f:maxReplicas": {}, "f:replicas": {}, "f:size": {}},
    }


def test_another_managers_value_is_a_conflict(api: Api, widget_path: str) -> None:
    path = f"{widget_path}/w"
    api.apply(path, config(size="small", replicas=2), "one")
    answer = api.apply(path, config(size="large", replicas=3), "two")
    assert (answer.status, answer.json["reason"]) == (409, "Conflict")
    assert answer.json["message"] == (
        'Apply failed with 2 conflicts: conflicts with "one":\n- .spec.replicas\n- .spec.size'
    )
    causes = [(c["reason"], c["field"]) for c in answer.json["details"]["causes"]]
    assert causes == [("FieldManagerConflict", ".spec.replicas"), ("FieldManagerConflict", ".spec.size")]


def test_equal_values_are_shared(api: Api, widget_path: str) -> None:
    path = f"{widget_path}/w"
    api.apply(path, config(size="small"), "one")
    shared = api.apply(path, config(size="small"), "two").json
    assert _fields(shared, "one") == _fields(shared, "two") == {"f:spec": {"f:size": {}}}


def test_force_takes_the_field(api: Api, widget_path: str) -> None:
    path = f"{widget_path}/w"
    api.apply(path, config(size="small", replicas=2), "one")
    taken = api.apply(path, config(replicas=3), "two", force="true").json
    assert taken["spec"]["replicas"] == 3
    assert _fields(taken, "one") == {"f:spec": {"f:size": {}}}


def test_what_a_manager_no_longer_lists_goes(api: Api, widget_path: str) -> None:
    path = f"{widget_path}/w"
    api.apply(path, config(size="small", note="hello", tags=["a", "b"]), "one")
    api.apply(path, config(tags=["b"]), "two")
    left = api.apply(path, config(size="small"), "one").json["spec"]
    assert "note" not in left and left["tags"] == ["b"]


def test_lists_merge_by_their_keys(api: Api, widget_path: str) -> None:
    path = f"{widget_path}/w"
    api.apply(path, config(size="small", ports=[{"port": 80, "name": "web"}]), "one")
    merged = api.apply(path, config(ports=[{"port": 81, "name": "other"}]), "two").json
    assert {p["port"]: p["name"] for p in merged["spec"]["ports"]} == {80: "web", 81: "other"}
    assert _fields(merged, "two") == {"f:spec": {"f:ports": {'k:{"port":81}': {".": {}, "f:name": {}, "f:port": {}}}}}


def test_status_conditions_have_an_owner_each(api: Api, widget_path: str) -> None:
    path = f"{widget_path}/w"
    api.post(widget_path, config(size="small"))
    for manager, kind in (("one", "Ready"), ("two", "Synced")):
        status = {"conditions": [{"type": kind, "status": "True"}]}
        body = {**WIDGET, "metadata": {"name": "w"}, "status": status}
        assert api.apply(f"{path}/status", body, manager, force="true").status == 200
    obj = api.get(path).json
    assert {c["type"] for c in obj["status"]["conditions"]} == {"Ready", "Synced"}
    entry = next(e for e in obj["metadata"]["managedFields"] if e["manager"] == "two")
    assert entry["subresource"] == "status"


def test_an_update_takes_fields_from_an_applier(api: Api, widget_path: str) -> None:
    path = f"{widget_path}/w"
    api.apply(path, config(size="small", replicas=2), "one")
    api.patch(path, {"spec": {"replicas": 3}}, fieldManager="editor")
    conflict = api.apply(path, config(size="small", replicas=2), "one")
    assert conflict.status == 409
    cause = conflict.json["details"]["causes"][0]
    assert cause["field"] == ".spec.replicas"
    assert cause["message"].startswith('conflict with "editor" using contract.example.com/v1')


def test_an_apply_without_effect_keeps_the_version(api: Api, widget_path: str) -> None:
    path = f"{widget_path}/w"
    first = api.apply(path, config(size="small"), "one").json
    again = api.apply(path, config(size="small"), "one").json
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_containers_of_built_in_kinds_merge_by_name(api: Api, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/d"
    labels = {"app": "d"}
    main = {"name": "main", "image": "example.com/a:1", "ports": [{"containerPort": 80}]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [main]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    base = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    assert api.apply(path, {**base, "spec": spec}, "one").status == 201
    side = {"name": "side", "image": "example.com/b:1"}
    merged = api.apply(path, {**base, "spec": {"template": {"spec": {"containers": [side]}}}}, "two").json
    assert [c["name"] for c in merged["spec"]["template"]["spec"]["containers"]] == ["main", "side"]
    dropped = api.apply(path, {**base, "metadata": {"name": "d"}}, "two").json
    assert [c["name"] for c in dropped["spec"]["template"]["spec"]["containers"]] == ["main"]


def test_malformed_configurations_are_refused(api: Api, widget_path: str) -> None:
    path = f"{widget_path}/w"
    assert api.patch(path, config(size="small"), "application/apply-patch+yaml").status == 422
    assert api.apply(path, {**config(size="small"), "metadata": {"name": "other"}}, "one").status == 400
    managed = {**config(size="small"), "metadata": {"name": "w", "managedFields": [{"manager": "x"}]}}
    assert api.apply(path, managed, "one").status == 400
    unknown = api.apply(path, config(size="small", colour="red"), "one")
    assert unknown.status == 500 and ".spec.colour: field not declared in schema" in unknown.json["message"]
