"""CustomResourceDefinition of RLJob, generated from the models: structural, described, with CEL rules."""

import json
from collections.abc import Collection
from typing import Any

from longshore.api import names
from longshore.api.rljob import RLJob
from longshore.api.rules import CEL_RULES

_KEPT = frozenset(
    {
        "type", "format", "enum", "default", "description", "minimum", "maximum", "exclusiveMinimum",
        "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
        "pattern", "required", "properties", "items", "additionalProperties",
    }
)  # fmt: skip

_COLUMNS = (
    ("Phase", "string", ".status.phase", 0),
    ("Round", "string", ".status.runtime.round.kind", 0),
    ("Step", "integer", ".status.runtime.step", 0),
    ("Steps", "integer", ".status.runtime.steps", 0),
    ("Reward", "number", ".status.runtime.reward", 0),
    ("Rollout-GPUs", "integer", ".status.gpus.rollout", 0),
    ("Trainer-GPUs", "integer", ".status.gpus.trainer", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Held-Out", "number", ".status.runtime.heldOut.latest", 1),
    ("Queue", "integer", ".status.runtime.draws.deferred", 1),
    ("Attempt", "integer", ".status.attempt", 1),
    ("Strategy", "string", ".spec.rollout.strategy", 1),
)


def rljob_crd() -> dict[str, Any]:
    """Return the CRD as an object to be written as YAML."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": ["all", "longshore"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [_column(*column) for column in _COLUMNS],
                    "schema": {"openAPIV3Schema": _root_schema()},
                }
            ],
        },
    }


def structural(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a pydantic JSON schema as a structural schema.

    References inlined, what structural schemas forbid removed.
    """
    extra = {key: value for key, value in schema.items() if key not in ("$ref", "$defs")}
    if "$ref" in schema:
        target = dict(definitions[schema["$ref"].rsplit("/", 1)[1]])
        rules = target.get(CEL_RULES, []) + extra.pop(CEL_RULES, [])
        schema = target | extra | ({CEL_RULES: rules} if rules else {})
    if "anyOf" in schema:
        schema = _without_null(schema)
        if "$ref" in schema:
            return structural(schema, definitions)
    if "oneOf" in schema:
        rest = {key: value for key, value in schema.items() if key not in ("oneOf", "discriminator")}
        merged = _told_apart([structural(one, definitions) for one in schema["oneOf"]])
        return _pruned(merged | rest, {}, merged["properties"])
    if "allOf" in schema and len(schema["allOf"]) == 1:
        rest = {key: value for key, value in schema.items() if key != "allOf"}
        return structural(schema["allOf"][0] | rest, definitions)
    return _pruned(schema, definitions)


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace `X | None` by an optional X; int-or-string keeps no type."""
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    if rest.get("default", ...) is None:
        del rest["default"]
    branches = [branch for branch in schema["anyOf"] if branch.get("type") != "null"]
    if rest.get("x-kubernetes-int-or-string"):
        return rest
    assert len(branches) == 1, f"a structural schema has no room for a union: {schema}"
    branch: dict[str, Any] = branches[0]
    return branch | rest


def _told_apart(branches: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge objects that their `name` tells apart: a structural schema has no room for alternatives.

    Defaults become part of descriptions. An API server would fill them in whatever the name is.
    """
    fields: dict[str, dict[str, dict[str, Any]]] = {}
    for branch in branches:
        assert CEL_RULES not in branch, "rules of one object would hold for the others"
        for alias, field in branch["properties"].items():
            fields.setdefault(alias, {})[branch["properties"]["name"]["default"]] = field
    tags = list(fields.pop("name"))
    about = "Name of the objective; `docs/reference/objectives.md` says when to choose which."
    name = {"type": "string", "enum": tags, "default": tags[0], "description": about}
    return {"type": "object", "properties": {"name": name} | {key: _of_some(one) for key, one in fields.items()}}


def _of_some(by_name: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a field that some objects have, or all of them, by their names."""
    defaults: dict[str, list[str]] = {}
    for name, field in by_name.items():
        if "default" in field and field["default"] != {}:
            defaults.setdefault(json.dumps(field["default"]).strip('"'), []).append(name)
    usual, *others = sorted(defaults, key=lambda value: -len(defaults[value])) or [""]
    merged = {key: value for key, value in next(iter(by_name.values())).items() if key != "default"}
    for field in by_name.values():
        assert all(field[key] == merged[key] for key in merged if key != "description"), "a name has one type"
    if usual:
        exceptions = "; ".join(f"{value} with {' and '.join(defaults[value])}" for value in others)
        merged["description"] += f" Default: {usual}" + (f"; {exceptions}." if others else ".")
    return merged


def _pruned(schema: dict[str, Any], definitions: dict[str, Any], absent: Collection[str] = ()) -> dict[str, Any]:
    """Remove what structural schemas forbid; `absent`: objects that get no default, besides those that may be None."""
    result = {key: value for key, value in schema.items() if key in _KEPT or key.startswith("x-kubernetes-")}
    for bound, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if bound in result and not isinstance(result[bound], bool):
            result |= {limit: result[bound], bound: True}
    if "const" in schema:
        result |= {"type": "string", "enum": [schema["const"]]}
    if result.get("additionalProperties") in (False, True):
        del result["additionalProperties"]
    if "additionalProperties" in result:
        result["additionalProperties"] = structural(result["additionalProperties"], definitions)
    if "items" in result:
        result["items"] = structural(result["items"], definitions)
    if "properties" in result:
        fields = result["properties"]
        may_be_none = {name for name, value in fields.items() if "anyOf" in value and value.get("default", ...) is None}
        result["properties"] = {name: structural(value, definitions) for name, value in fields.items()}
        _default_objects(result, {*may_be_none, *absent})
    if "description" in result:
        result["description"] = " ".join(result["description"].split())
    return result


def _default_objects(schema: dict[str, Any], absent: Collection[str]) -> None:
    """Give an optional object whose fields all have defaults one of its own, so that the API server fills it in.

    The default is written out in full: an API server validates each default as it is written, with the rules of its
    schema, and a rule about a field that only a nested default would fill in fails with "no such key".
    `absent`: fields that mean something else when they are not there.
    """
    for name, field in schema["properties"].items():
        if "properties" not in field:
            continue
        is_optional = name not in schema.get("required", []) and name not in absent
        if "default" in field or (is_optional and not field.get("required")):
            field["default"] = _nested_defaults(field) | field.get("default", {})


def _nested_defaults(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults of an object's fields.

    Schemas are built inside out, so those of nested objects are complete.
    """
    return {name: field["default"] for name, field in schema["properties"].items() if "default" in field}


def _root_schema() -> dict[str, Any]:
    generated = RLJob.model_json_schema(by_alias=True, mode="validation")
    definitions = generated.pop("$defs")
    root = structural(generated, definitions)
    root["properties"]["apiVersion"] = {"type": "string"}
    root["properties"]["kind"] = {"type": "string"}
    root["properties"]["metadata"] = {"type": "object"}
    root["required"] = ["spec"]
    _strip_defaults(root["properties"]["status"])
    root["properties"]["status"].pop("default", None)
    _describe_defaults(root["properties"]["spec"])
    return root


def default_sentence(field: dict[str, Any]) -> str:
    """Return ` Default: VALUE.` for a field with a default of its own, or nothing.

    The default of an object follows from those of its fields, and descriptions say what an empty value means.
    """
    default = field.get("default")
    if "properties" in field or default in (None, "", {}, []):
        return ""
    return f" Default: {default if isinstance(default, str) and default.isalnum() else json.dumps(default)}."


def _describe_defaults(schema: dict[str, Any]) -> None:
    """Add defaults to descriptions, because `kubectl explain` shows only these."""
    for field in schema.get("properties", {}).values():
        field["description"] += default_sentence(field)
        _describe_defaults(field)
        _describe_defaults(field.get("items", {}))


def _strip_defaults(schema: dict[str, Any]) -> None:
    """Remove the defaults of the status, which controllers write: absent means absent."""
    schema.pop("default", None)
    for child in (
        *schema.get("properties", {}).values(),
        schema.get("items"),
        schema.get("additionalProperties"),
    ):
        if isinstance(child, dict):
            _strip_defaults(child)


def _column(name: str, kind: str, path: str, priority: int) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    if priority:
        column["priority"] = priority
    return column
