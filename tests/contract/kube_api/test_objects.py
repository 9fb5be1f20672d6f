"""Create, read, update and delete."""

import pytest
import yaml

from tests.contract.kube_api.api import JSON_PATCH, MERGE, STRATEGIC, Api, widget


@pytest.fixture
def config_maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def test_a_created_object_carries_what_the_server_adds(api: Api, config_maps: str, namespace: str) -> None:
    answer = api.post(config_maps, {"metadata": {"name": "a"}, "data": {"k": "v"}})
    assert answer.status == 201
    metadata = answer.json["metadata"]
    assert answer.json["kind"] == "ConfigMap" and answer.json["apiVersion"] == "v1"
    assert metadata["namespace"] == namespace
    assert len(metadata["uid"]) == 36 and metadata["creationTimestamp"].endswith("Z")
    assert int(metadata["resourceVersion"]) > 0


def test_a_name_is_generated_on_request(api: Api, config_maps: str) -> None:
    names = {api.post(config_maps, {"metadata": {"generateName": "gen-"}}).json["metadata"]["name"] for _ in range(2)}
    assert len(names) == 2 and all(name.startswith("gen-") and len(name) == 9 for name in names)


def test_a_name_can_be_used_once(api: Api, config_maps: str) -> None:
    api.post(config_maps, {"metadata": {"name": "a"}})
    answer = api.post(config_maps, {"metadata": {"name": "a"}})
    assert (answer.status, answer.json["reason"]) == (409, "AlreadyExists")
    assert answer.json["message"] == 'configmaps "a" already exists'


def test_a_missing_object_is_named_in_the_refusal(api: Api, config_maps: str) -> None:
    answer = api.get(f"{config_maps}/absent")
    assert answer.status == 404
    assert answer.json["details"] == {"name": "absent", "kind": "configmaps"}
    assert answer.json["message"] == 'configmaps "absent" not found'


def test_objects_need_an_existing_namespace(api: Api, namespace: str) -> None:
    answer = api.post("/api/v1/namespaces/absent-namespace/configmaps", {"metadata": {"name": "a"}})
    assert (answer.status, answer.json["message"]) == (404, 'namespaces "absent-namespace" not found')


def test_an_update_with_an_old_version_conflicts(api: Api, config_maps: str) -> None:
    first = api.post(config_maps, {"metadata": {"name": "a"}}).json
    assert api.put(f"{config_maps}/a", {**first, "data": {"k": "1"}}).status == 200
    answer = api.put(f"{config_maps}/a", {**first, "data": {"k": "2"}})
    assert (answer.status, answer.json["reason"]) == (409, "Conflict")
    assert "the object has been modified" in answer.json["message"]


def test_a_change_without_effect_keeps_the_version(api: Api, config_maps: str) -> None:
    first = api.post(config_maps, {"metadata": {"name": "a"}, "data": {"k": "v"}}).json
    again = api.patch(f"{config_maps}/a", {"data": {"k": "v"}}).json
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert (
        api.put(f"{config_maps}/a", first).json["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    )


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        (MERGE, {"data": {"a": None, "b": "2"}}),
        (STRATEGIC, {"data": {"a": None, "b": "2"}}),
        (JSON_PATCH, [{"op": "remove", "path": "/data/a"}, {"op": "add", "path": "/data/b", "value": "2"}]),
    ],
)
def test_patches_change_what_they_name(api: Api, config_maps: str, kind: str, patch: object) -> None:
    api.post(config_maps, {"metadata": {"name": "a"}, "data": {"a": "1", "c": "3"}})
    assert api.patch(f"{config_maps}/a", patch, kind).json["data"] == {"b": "2", "c": "3"}


def test_a_failed_test_in_a_json_patch_changes_nothing(api: Api, config_maps: str) -> None:
    api.post(config_maps, {"metadata": {"name": "a"}, "data": {"a": "1"}})
    patch = [{"op": "test", "path": "/data/a", "value": "2"}, {"op": "remove", "path": "/data/a"}]
    assert api.patch(f"{config_maps}/a", patch, JSON_PATCH).status == 422
    assert api.get(f"{config_maps}/a").json["data"] == {"a": "1"}


def test_a_strategic_patch_merges_lists_by_key(api: Api, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    containers = [{"name": "one", "image": "example.com/a:1"}, {"name": "two", "image": "example.com/b:1"}]
    labels = {"app": "x"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    assert api.post(path, {"metadata": {"name": "d"}, "spec": spec}).status == 201
    change = {"spec": {"template": {"spec": {"containers": [{"name": "two", "image": "example.com/b:2"}]}}}}
    changed = api.patch(f"{path}/d", change, STRATEGIC).json
    images = {c["name"]: c["image"] for c in changed["spec"]["template"]["spec"]["containers"]}
    assert images == {"one": "example.com/a:1", "two": "example.com/b:2"}
    assert changed["metadata"]["generation"] == 2


def test_a_custom_resource_refuses_strategic_patches(api: Api, widget_path: str) -> None:
    api.post(widget_path, widget())
    answer = api.patch(f"{widget_path}/w", {"spec": {"size": "large"}}, STRATEGIC)
    assert (answer.status, answer.json["reason"]) == (415, "UnsupportedMediaType")


def test_a_dry_run_stores_nothing(api: Api, config_maps: str) -> None:
    assert api.post(config_maps, {"metadata": {"name": "a"}}, dryRun="All").status == 201
    assert api.get(f"{config_maps}/a").status == 404


def test_a_delete_answers_with_the_uid(api: Api, config_maps: str) -> None:
    uid = api.post(config_maps, {"metadata": {"name": "a"}}).json["metadata"]["uid"]
    answer = api.delete(f"{config_maps}/a")
    assert (answer.status, answer.json["status"]) == (200, "Success")
    assert answer.json["details"] == {"name": "a", "kind": "configmaps", "uid": uid}


def test_a_delete_can_insist_on_an_identity(api: Api, config_maps: str) -> None:
    api.post(config_maps, {"metadata": {"name": "a"}})
    wrong = {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}
    assert api.delete(f"{config_maps}/a", wrong).status == 409
    assert api.get(f"{config_maps}/a").status == 200


def test_finalizers_keep_a_deleted_object(api: Api, config_maps: str) -> None:
    api.post(config_maps, {"metadata": {"name": "a", "finalizers": ["example.com/hold"]}})
    held = api.delete(f"{config_maps}/a").json
    assert api.get(f"{config_maps}/a").json["metadata"]["deletionTimestamp"]
    assert held["kind"] in ("Status", "ConfigMap")
    more = {"metadata": {"finalizers": ["example.com/hold", "example.com/new"]}}
    refused = api.patch(f"{config_maps}/a", more)
    assert refused.status == 422 and "no new finalizers can be added" in refused.json["message"]
    assert api.patch(f"{config_maps}/a", {"metadata": {"finalizers": None}}).status == 200
    assert api.get(f"{config_maps}/a").status == 404


def test_a_collection_is_deleted_by_label(api: Api, config_maps: str) -> None:
    for name, tier in (("a", "x"), ("b", "x"), ("c", "y")):
        api.post(config_maps, {"metadata": {"name": name, "labels": {"tier": tier}}})
    assert api.delete(config_maps, labelSelector="tier=x").status == 200
    left = [i["metadata"]["name"] for i in api.get(config_maps, labelSelector="tier").json["items"]]
    assert left == ["c"]


def test_unknown_fields_warn_are_refused_or_pass(api: Api, config_maps: str) -> None:
    body = {"metadata": {"name": "a"}, "nope": 1}
    warned = api.post(config_maps, body, dryRun="All")
    assert warned.headers["Warning"] == '299 - "unknown field \\"nope\\""' and "nope" not in warned.json
    strict = api.post(config_maps, body, dryRun="All", fieldValidation="Strict")
    assert strict.status == 400
    assert strict.json["message"].endswith('strict decoding error: unknown field "nope"')
    assert "Warning" not in api.post(config_maps, body, dryRun="All", fieldValidation="Ignore").headers


def test_a_double_field_is_refused_in_strict_mode(api: Api, config_maps: str) -> None:
    body = '{"metadata": {"name": "a"}, "data": {}, "data": {}}'
    answer = api.post(config_maps, body, dryRun="All", fieldValidation="Strict")
    assert answer.status == 400 and 'duplicate field "data"' in answer.json["message"]


def test_bodies_may_be_yaml_and_answers_too(api: Api, config_maps: str) -> None:
    body = "metadata: {name: a}\nkind: ConfigMap\napiVersion: v1\n"
    assert api.post(config_maps, body, content_type="application/yaml").status == 201
    shown = api.get(f"{config_maps}/a", accept="application/yaml")
    assert shown.headers["Content-Type"].startswith("application/yaml") and "kind: ConfigMap" in shown.text


def test_yaml_has_what_stands_twice_in_an_object_twice(api: Api, widgets: str) -> None:
    """Names of a definition are in its spec and in its status; YAML could have an anchor and an alias for them."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.contract.example.com"
    text = api.get(path, accept="application/yaml").text
    assert text.count("- cwd") == 2
    assert yaml.safe_load(text)["status"]["acceptedNames"]["shortNames"] == ["cwd"]


def test_a_number_that_json_does_not_have_is_refused(api: Api, widget_path: str) -> None:
    body = "{apiVersion: contract.example.com/v1, kind: Widget, metadata: {name: a}, spec: {size: small, ratio: .inf}}"
    answer = api.post(widget_path, f"# YAML\n{body}\n", content_type="application/yaml")
    assert answer.status == 400
    assert "unsupported value: +Inf" in answer.json["message"]


def test_a_body_without_content_type_is_json(api: Api, config_maps: str) -> None:
    assert api.request("POST", config_maps, {"metadata": {"name": "a"}}).status == 201


@pytest.mark.parametrize(
    ("method", "suffix", "status"),
    [("POST", "/a", 405), ("PUT", "", 405), ("PATCH", "", 405)],
)
def test_methods_stand_where_they_belong(api: Api, config_maps: str, method: str, suffix: str, status: int) -> None:
    assert api.request(method, config_maps + suffix, {}, content_type=MERGE).status == status


def test_unreadable_requests_are_refused(api: Api, config_maps: str) -> None:
    assert api.post(config_maps, '{"apiVersion":').status == 400
    assert api.post(config_maps, "x", content_type="text/plain").status == 415
    assert api.get(config_maps, accept="text/plain").status == 406
    assert api.post(config_maps, {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "a"}}).status == 400
    assert api.post(config_maps, {"metadata": {"name": "Bad_"}}).status == 422
    assert api.get("/apis/absent.example.com/v1/things").status == 404
