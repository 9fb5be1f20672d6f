"""Validation of the defaults that a schema declares.

A default is judged as it is written, before the defaults of nested fields are filled in: an empty object whose rules
read a field with a default of its own is refused.
"""

from collections.abc import Iterator
from dataclasses import replace

from longshore_devcluster.apiserver.crd.cel import RuleSet
from longshore_devcluster.apiserver.crd.openapi_checks import schema_errors
from longshore_devcluster.apiserver.crd.structural import prune
from longshore_devcluster.apiserver.errors import FieldError, field_forbidden, field_invalid
from longshore_devcluster.apiserver.schema.node import Json, Schema
from longshore_devcluster.apiserver.store import copied


def default_errors(schema: Schema, path: str) -> Iterator[FieldError]:
    """Yield the errors of the defaults of a schema and of everything below it.

    The real server looks into properties and list items; the values of maps it leaves alone.
    """
    if schema.has_default and schema.default is not None:
        yield from _value_errors(schema.default, schema, f"{path}.default")
    for name, child in schema.properties.items():
        if child.source is not None:
            yield from default_errors(child, f"{path}.properties[{name}]")
    if schema.kind == "list" and schema.item is not None:
        yield from default_errors(schema.item, f"{path}.items")


def metadata_errors(source: Json, path: str) -> Iterator[FieldError]:
    """Yield the errors of what a schema says about top-level metadata: it may restrict the name and nothing else."""
    metadata = (source.get("properties") or {}).get("metadata") or {}
    fields = metadata.get("properties") or {}
    if set(fields) - {"name", "generateName"}:
        why = "must not specify anything other than name and generateName, but metadata is implicitly specified"
        yield field_forbidden(f"{path}.properties[metadata]", why)
    for name, field in fields.items():
        if "default" in field:
            where = f"{path}.properties[metadata].properties[{name}].default"
            yield field_forbidden(where, "must not be set in top-level metadata")


def _value_errors(value: Json, schema: Schema, where: str) -> Iterator[FieldError]:
    pruned = copied({"": value})
    if prune(pruned[""], schema, root=schema.embedded):
        yield field_invalid(where, value, "must not have unknown fields")
        return
    # Of lists that are sets or maps the real server checks the members of objects only, not of defaults.
    errors = [error for error in schema_errors(value, schema) if error.reason != "FieldValueDuplicate"]
    for error in errors or RuleSet(schema).errors_of_default(value):
        yield replace(error, field=_joined(where, error.field))


def _joined(where: str, field: str) -> str:
    if field in ("", "<nil>"):
        return where
    return where + field if field.startswith("[") else f"{where}.{field}"
