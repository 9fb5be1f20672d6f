"""The generated CRD keeps what Kubernetes and people ask of it."""

import json
from collections.abc import Iterator
from typing import Any

from longshore.api.crd import rljob_crd

SCHEMA = rljob_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


def test_the_crd_stays_far_below_what_client_side_apply_can_store() -> None:
    most_bytes = 256 << 10
    assert len(json.dumps(rljob_crd())) < 0.6 * most_bytes


def test_every_node_is_structural() -> None:
    forbidden = {"$ref", "anyOf", "oneOf", "allOf", "title", "const", "x-kubernetes-preserve-unknown-fields"}
    for path, node in nodes(SCHEMA):
        kinds = {"type", "x-kubernetes-int-or-string"} & node.keys()
        assert len(kinds) == 1, path
        assert not (forbidden - {"x-kubernetes-preserve-unknown-fields"}) & node.keys(), path
        assert not ("properties" in node and "additionalProperties" in node), path


def test_every_field_of_the_spec_has_a_description() -> None:
    undocumented = [path for path, node in nodes(SCHEMA["properties"]["spec"]) if not node.get("description")]
    assert [path for path in undocumented if not path.endswith("[]")] == []


def test_descriptions_give_the_defaults_of_their_fields() -> None:
    spec = SCHEMA["properties"]["spec"]["properties"]
    described = {path: node.get("description", "") for path, node in nodes(SCHEMA["properties"]["spec"]) if path}
    assert described[".backoffLimit"].endswith(" Default: 6.")
    assert described[".workers.gpuResourceName"].endswith(' Default: "nvidia.com/gpu".')
    assert described[".reward.functions[].code.requiredLayers"].endswith(
        ' Default: ["Seccomp", "Landlock", "Rlimits"].'
    )
    assert described[".suspend"].endswith(" Default: false.")
    assert spec["rollout"]["default"], "an object of defaults, which its fields describe"
    assert all("Default" not in described[path] for path in (".rollout", ".image", ".storage.output", ".data.where"))


def complete(schema: dict[str, Any]) -> dict[str, Any]:
    """The object that the fields' own defaults make."""
    return {name: field["default"] for name, field in schema["properties"].items() if "default" in field}


def test_optional_objects_default_to_what_their_fields_default_to_at_every_depth() -> None:
    with_default = [
        (path, node) for path, node in nodes(SCHEMA["properties"]["spec"]) if "properties" in node and "default" in node
    ]
    assert {".rollout", ".rollout.tailBatching", ".reward", ".trainer", ".reward.functions[].code"} <= {
        path for path, _ in with_default
    }
    for path, node in with_default:
        assert node["default"] == complete(node), path


def test_some_objects_mean_something_else_when_they_are_not_there() -> None:
    spec = SCHEMA["properties"]["spec"]
    assert "default" not in spec["properties"]["storage"]["properties"]["create"]
    assert all("default" not in node for _, node in nodes(SCHEMA["properties"]["status"]))
