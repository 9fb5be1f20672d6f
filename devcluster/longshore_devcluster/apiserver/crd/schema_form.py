"""The rules of structural schemas: what the source of a schema must look like."""

from collections.abc import Iterator

import re2

from longshore_devcluster.apiserver.errors import (
    FieldError,
    field_forbidden,
    field_invalid,
    field_not_supported,
    field_required,
)
from longshore_devcluster.apiserver.schema.node import Object

_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_COMBINATIONS = ("allOf", "anyOf", "oneOf")
# What a branch of a combination may not say, as the schema around it says it.
_OUTSIDE_BRANCHES = ("description", "type", "default", "additionalProperties", "nullable")


def schema_form_errors(source: Object, path: str) -> Iterator[FieldError]:
    """Yield the errors of a schema's form, and of everything below it."""
    yield from _type_errors(source, path)
    if "$ref" in source:
        yield field_forbidden(f"{path}.$ref", "$ref is not supported")
    if source.get("x-kubernetes-preserve-unknown-fields") is False:
        yield field_invalid(f"{path}.x-kubernetes-preserve-unknown-fields", False, "must be true or undefined")
    if source.get("uniqueItems"):
        why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield field_forbidden(f"{path}.uniqueItems", why)
    yield from _pattern_errors(source, path)
    for name in _COMBINATIONS:
        for index, branch in enumerate(source.get(name) or ()):
            yield from _branch_errors(branch, f"{path}.{name}[{index}]", bool(source.get("x-kubernetes-int-or-string")))
    yield from _list_errors(source, path)
    for name, child in (source.get("properties") or {}).items():
        yield from schema_form_errors(child, f"{path}.properties[{name}]")
    values = source.get("additionalProperties")
    if source.get("properties") and values:
        yield field_forbidden(f"{path}.additionalProperties", "mutual exclusive with properties")
    if isinstance(values, dict):
        yield from schema_form_errors(values, f"{path}.additionalProperties")
    if isinstance(source.get("items"), dict):
        yield from schema_form_errors(source["items"], f"{path}.items")


def _type_errors(source: Object, path: str) -> Iterator[FieldError]:
    kind = source.get("type", "")
    any_type = source.get("x-kubernetes-int-or-string") or source.get("x-kubernetes-preserve-unknown-fields")
    if not kind and not any_type:
        yield field_required(f"{path}.type", "must not be empty for specified object fields")
    elif kind and kind not in _TYPES:
        yield field_not_supported(f"{path}.type", kind, _TYPES)


def _pattern_errors(source: Object, path: str) -> Iterator[FieldError]:
    pattern = source.get("pattern")
    if pattern is None:
        return
    try:
        re2.compile(pattern)
    except re2.error as error:
        shown = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        why = f"must be a valid regular expression, but isn't: error parsing regexp: {shown}"
        yield field_invalid(f"{path}.pattern", pattern, why)


def _branch_errors(branch: Object, path: str, int_or_string: bool) -> Iterator[FieldError]:
    for field in _OUTSIDE_BRANCHES:
        if branch.get(field) and not (field == "type" and int_or_string):
            yield field_forbidden(f"{path}.{field}", "must be empty to be structural")


def _list_errors(source: Object, path: str) -> Iterator[FieldError]:
    items = source.get("items")
    if source.get("type") == "array" and not isinstance(items, dict):
        yield field_required(f"{path}.items", "must be specified")
        return
    form, keys = source.get("x-kubernetes-list-type"), source.get("x-kubernetes-list-map-keys") or []
    if form == "map" and not keys:
        yield field_required(f"{path}.x-kubernetes-list-map-keys", "must not be empty if x-kubernetes-list-type is map")
    elif form == "map" and isinstance(items, dict):
        yield from _key_errors(items, keys, path)
    elif form == "set" and isinstance(items, dict):
        yield from _member_errors(items, path)


def _key_errors(items: Object, keys: list[str], path: str) -> Iterator[FieldError]:
    fields = items.get("properties") or {}
    if not set(keys) <= set(fields):
        why = "entries must all be names of item properties"
        yield field_invalid(f"{path}.x-kubernetes-list-map-keys", keys, why)
        return
    for key in keys:
        if key not in (items.get("required") or ()) and "default" not in fields[key]:
            why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
            yield field_required(f"{path}.items.properties[{key}].default", why)


def _member_errors(items: Object, path: str) -> Iterator[FieldError]:
    """Yield errors of the items of a set, which must be atomic because members are compared as wholes."""
    why = "must be atomic as item of a list with x-kubernetes-list-type=set"
    if items.get("type") == "object" and items.get("x-kubernetes-map-type") != "atomic":
        yield field_invalid(f"{path}.items.x-kubernetes-map-type", items.get("x-kubernetes-map-type"), why)
    if items.get("type") == "array" and items.get("x-kubernetes-list-type") != "atomic":
        yield field_invalid(f"{path}.items.x-kubernetes-list-type", items.get("x-kubernetes-list-type"), why)
