"""Custom resources: schemas, defaults, rules, subresources."""

from typing import Any

import pytest

from tests.contract.kube_api.api import WIDGET, Api, is_established, widget

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def _causes(answer: Any) -> dict[str, str]:
    assert answer.status == 422, answer.text
    return {cause["field"]: cause["message"] for cause in answer.json["details"]["causes"]}


def test_defaults_are_filled_in_also_inside_lists(api: Api, widget_path: str) -> None:
    created = api.post(widget_path, widget(ports=[{"port": 80}])).json
    assert created["spec"]["replicas"] == 1 and created["spec"]["maxReplicas"] == 10
    assert created["spec"]["ports"] == [{"port": 80, "name": "main"}]
    assert created["metadata"]["generation"] == 1


def test_unknown_fields_are_pruned_except_where_they_are_kept(api: Api, widget_path: str) -> None:
    created = api.post(widget_path, widget(colour="red", free={"any": {"thing": 1}}, limit="5%")).json
    assert "colour" not in created["spec"]
    assert created["spec"]["free"] == {"any": {"thing": 1}} and created["spec"]["limit"] == "5%"
    strict = api.post(widget_path, widget("x", colour="red"), fieldValidation="Strict")
    assert strict.status == 400 and 'unknown field "spec.colour"' in strict.json["message"]


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({"size": "huge"}, "spec.size", 'Unsupported value: "huge": supported values: "small", "medium", "large"'),
        (
            {"replicas": 99, "maxReplicas": 99},
            "spec.replicas",
            "Invalid value: 99: spec.replicas in body should be less than or equal to 50",
        ),
        ({"note": "UPPER"}, "spec.note", "Invalid value: \"UPPER\": spec.note in body should match '^[a-z ]*$'"),
        ({"tags": ["a", "a"]}, "spec.tags[1]", 'Duplicate value: "a"'),
        ({"ports": [{"port": 1}, {"port": 1}]}, "spec.ports[1]", 'Duplicate value: {"port":1}'),
        ({"ports": [{}]}, "spec.ports[0].port", "Required value"),
        (
            {"replicas": "many"},
            "spec.replicas",
            'Invalid value: "string": spec.replicas in body must be of type integer: "string"',
        ),
        ({"replicas": 11}, "spec", "Invalid value: replicas must not exceed maxReplicas"),
        ({"memory": "2Gi"}, "spec.memory", "Forbidden: memory 2Gi is above 1Gi"),
    ],
)
def test_what_the_schema_forbids_is_refused(
    api: Api, widget_path: str, spec: dict[str, Any], field: str, message: str
) -> None:
    assert _causes(api.post(widget_path, widget(**spec)))[field] == message


def test_rules_are_skipped_where_the_shape_is_wrong(api: Api, widget_path: str) -> None:
    causes = _causes(api.post(widget_path, {**WIDGET, "metadata": {"name": "w"}, "spec": {"replicas": 99}}))
    assert causes["spec.size"] == "Required value" and "some validation rules were not checked" in causes["<nil>"]


def test_transition_rules_hold_on_update_only(api: Api, widget_path: str) -> None:
    assert api.post(widget_path, widget(owner="ann")).status == 201
    causes = _causes(api.patch(f"{widget_path}/w", {"spec": {"owner": "bob"}}))
    assert causes == {"spec.owner": 'Invalid value: "bob": owner is immutable'}


def test_status_and_spec_are_written_apart(api: Api, widget_path: str) -> None:
    created = api.post(widget_path, {**widget(), "status": {"phase": "Hacked"}}).json
    assert "status" not in created
    kept = api.patch(f"{widget_path}/w", {"spec": {"replicas": 2}, "status": {"phase": "X"}}).json
    assert "status" not in kept and kept["metadata"]["generation"] == 2
    change = {"metadata": {"labels": {"e": "f"}}, "spec": {"replicas": 9}, "status": {"phase": "Ready"}}
    changed = api.patch(f"{widget_path}/w/status", change).json
    assert changed["status"] == {"phase": "Ready"}
    assert changed["spec"]["replicas"] == 2 and "labels" not in changed["metadata"]
    assert changed["metadata"]["generation"] == 2


def test_an_update_needs_a_version(api: Api, widget_path: str) -> None:
    api.post(widget_path, widget())
    assert "metadata.resourceVersion" in _causes(api.put(f"{widget_path}/w", widget()))


def test_kind_and_version_must_fit(api: Api, widget_path: str) -> None:
    assert api.post(widget_path, {"metadata": {"name": "w"}, "spec": {"size": "small"}}).status == 400
    assert api.post(widget_path, {**widget(), "kind": "Other"}).status == 422
    assert api.post(widget_path, {**widget(), "apiVersion": "contract.example.com/v9"}).status == 400


def test_a_rule_that_cannot_be_compiled_is_refused(api: Api) -> None:
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "x-kubernetes-validations": [{"rule": "self.b > 1"}],
            }
        },
    }
    answer = api.post(DEFINITIONS, _definition("gizmos", "Gizmo", schema))
    (field, message), *_ = _causes(answer).items()
    assert field.endswith("openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule")
    assert "compilation failed: ERROR: <input>:1:5: undefined field 'b'" in message


def _definition(plural: str, kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": plural, "kind": kind}
    spec = {"group": "contract.example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.contract.example.com"},
        "spec": spec,
    }


def test_a_definition_takes_its_objects_with_it(api: Api, namespace: str) -> None:
    name = "gadgets.contract.example.com"
    with api.watching(DEFINITIONS, fieldSelector=f"metadata.name={name}") as events:
        created = api.post(DEFINITIONS, _definition("gadgets", "Gadget", {"type": "object"}))
        assert created.status == 201
        assert created.json["spec"]["names"]["listKind"] == "GadgetList"
        events.until(is_established)
        path = f"/apis/contract.example.com/v1/namespaces/{namespace}/gadgets"
        gadget = {"apiVersion": "contract.example.com/v1", "kind": "Gadget", "metadata": {"name": "g"}}
        assert api.post(path, gadget).status == 201
        assert api.delete(f"{DEFINITIONS}/{name}").status == 200
        events.until(lambda event: event["type"] == "DELETED")
    assert api.get(f"{DEFINITIONS}/{name}").status == 404
