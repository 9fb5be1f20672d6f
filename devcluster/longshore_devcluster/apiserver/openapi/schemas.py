"""Schema nodes as OpenAPI v3 components."""

from longshore_devcluster.apiserver.resources import Resource
from longshore_devcluster.apiserver.schema.builtin import builtin_types
from longshore_devcluster.apiserver.schema.node import Object, Schema

_SCALARS: dict[str, Object] = {
    "string": {"type": "string"},
    "int": {"type": "integer", "format": "int64"},
    "number": {"type": "number", "format": "double"},
    "bool": {"type": "boolean"},
    "time": {"type": "string", "format": "date-time"},
    "microtime": {"type": "string", "format": "date-time"},
    "quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "intorstring": {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
    "bytes": {"type": "string", "format": "byte"},
    "any": {"x-kubernetes-preserve-unknown-fields": True},
}


def definitions_for(resources: list[Resource]) -> dict[str, Object]:
    """Return the components of one document: the kinds and everything they refer to."""
    found: dict[str, Object] = {}
    for resource in resources:
        name = _kind_name(resource)
        if resource.custom:
            found[name] = _custom(resource, found)
        else:
            _message(resource.schema, found)
            shown = found[name]
            shown["properties"] = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, **shown["properties"]}
        found[name]["x-kubernetes-group-version-kind"] = [
            {"group": resource.group, "version": resource.version, "kind": resource.kind}
        ]
    for message in ("DeleteOptions", "Status"):
        _message(builtin_types()[message], found)
    return found


def _kind_name(resource: Resource) -> str:
    if not resource.custom:
        return resource.schema.name
    reversed_group = ".".join(reversed(resource.group.split(".")))
    return f"{reversed_group}.{resource.version}.{resource.kind}"


def _custom(resource: Resource, found: dict[str, Object]) -> Object:
    """Return a custom kind: its own schema, with the standard metadata."""
    source = dict(resource.schema.source or {"type": "object"})
    metadata = builtin_types()["ObjectMeta"]
    _message(metadata, found)
    source["properties"] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        **(source.get("properties") or {}),
        "metadata": {"allOf": [_reference(metadata)], "default": {}},
    }
    return source


def _reference(schema: Schema) -> Object:
    return {"$ref": f"#/components/schemas/{schema.name}"}


def _message(schema: Schema, found: dict[str, Object]) -> None:
    if schema.name in found:
        return
    shown: Object = {"type": "object", "description": schema.description or schema.name.rsplit(".", 1)[-1]}
    found[schema.name] = shown
    shown["properties"] = {name: _property(node, found) for name, node in schema.properties.items()}
    if schema.required:
        shown["required"] = sorted(schema.required)
    if schema.atomic:
        shown["x-kubernetes-map-type"] = "atomic"


def _property(node: Schema, found: dict[str, Object]) -> Object:
    if node.kind == "object":
        _message(node, found)
        shown: Object = {"allOf": [_reference(node)], "default": {}}
    elif node.kind == "list":
        assert node.item is not None
        shown = {"type": "array", "items": _item(node.item, found), "x-kubernetes-list-type": node.list_type}
        if node.map_keys:
            shown["x-kubernetes-list-map-keys"] = list(node.map_keys)
    elif node.kind == "map":
        assert node.item is not None
        shown = {"type": "object", "additionalProperties": _item(node.item, found)}
    else:
        return dict(_SCALARS[node.kind])
    if node.merge:
        shown["x-kubernetes-patch-strategy"] = "merge,retainKeys" if node.replace_keys else "merge"
        if node.merge_key:
            shown["x-kubernetes-patch-merge-key"] = node.merge_key
    elif node.replace_keys:
        shown["x-kubernetes-patch-strategy"] = "retainKeys"
    return shown


def _item(node: Schema, found: dict[str, Object]) -> Object:
    """Return an element: a plain reference where it is a message."""
    if node.kind == "object":
        _message(node, found)
        return {"allOf": [_reference(node)], "default": {}}
    return _property(node, found)
