"""Validation of CustomResourceDefinitions."""

from collections.abc import Iterator

from longshore_devcluster.apiserver.crd.cel import rule_errors
from longshore_devcluster.apiserver.crd.jsonpath import BadPath, steps
from longshore_devcluster.apiserver.crd.structural import structural
from longshore_devcluster.apiserver.errors import (
    FieldError,
    field_forbidden,
    field_invalid,
    field_not_supported,
    field_required,
)
from longshore_devcluster.apiserver.schema.node import Object

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")


def definition_errors(new: Object, old: Object | None) -> list[FieldError]:
    """Errors of a definition."""
    return list(_errors(new, old))


def _errors(new: Object, old: Object | None) -> Iterator[FieldError]:
    spec = new["spec"]
    names, group = spec.get("names") or {}, spec.get("group", "")
    wanted = f"{names.get('plural', '')}.{group}"
    if new["metadata"]["name"] != wanted:
        rule = 'must be spec.names.plural+"."+spec.group'
        yield field_invalid("metadata.name", new["metadata"]["name"], rule)
    for field in ("plural", "kind"):
        if not names.get(field):
            yield field_required(f"spec.names.{field}")
    if not group:
        yield field_required("spec.group")
    if spec.get("scope") not in ("Cluster", "Namespaced"):
        yield field_not_supported("spec.scope", spec.get("scope", ""), ("Cluster", "Namespaced"))
    versions = spec.get("versions") or []
    if sum(1 for v in versions if v.get("storage")) != 1:
        rule = "must have exactly one version marked as storage version"
        yield field_invalid("spec.versions", [v.get("name") for v in versions], rule)
    single = len(versions) == 1
    for index, version in enumerate(versions):
        yield from _version_errors(version, "spec.validation" if single else f"spec.versions[{index}].schema", index)
    if old is not None:
        for field, path in (("scope", "spec.scope"), ("group", "spec.group")):
            if spec.get(field) != old["spec"].get(field):
                yield field_invalid(path, spec.get(field), "field is immutable")
        if names.get("plural") != old["spec"]["names"].get("plural"):
            yield field_invalid("spec.names.plural", names.get("plural"), "field is immutable")


def _version_errors(version: Object, schema_path: str, index: int) -> Iterator[FieldError]:
    source = (version.get("schema") or {}).get("openAPIV3Schema")
    if source is None:
        yield field_required(f"spec.versions[{index}].schema.openAPIV3Schema", "schemas are required")
        return
    path = f"{schema_path}.openAPIV3Schema"
    if source.get("type") != "object":
        yield field_invalid(f"{path}.type", source.get("type", ""), "must be object")
    structure = list(_schema_errors(source, path))
    yield from structure
    if not structure:
        yield from rule_errors(structural(source, root=True), path)
    for at, column in enumerate(version.get("additionalPrinterColumns") or ()):
        where = f"spec.versions[{index}].additionalPrinterColumns[{at}]"
        if column.get("type") not in _COLUMN_TYPES:
            yield field_not_supported(f"{where}.type", column.get("type", ""), _COLUMN_TYPES)
        yield from _path_errors(column.get("jsonPath", ""), f"{where}.jsonPath")
    for at, field in enumerate(version.get("selectableFields") or ()):
        yield from _path_errors(field["jsonPath"], f"spec.versions[{index}].selectableFields[{at}].jsonPath")


def _path_errors(path: str, where: str) -> Iterator[FieldError]:
    try:
        steps(path)
    except BadPath:
        yield field_invalid(where, path, "is an invalid path")


def _schema_errors(source: Object, path: str) -> Iterator[FieldError]:
    """The rules of structural schemas."""
    kind = source.get("type", "")
    int_or_string = source.get("x-kubernetes-int-or-string")
    preserves = source.get("x-kubernetes-preserve-unknown-fields")
    if not kind and not int_or_string and not preserves:
        yield field_required(f"{path}.type", "must not be empty for specified object fields")
    elif kind and kind not in _TYPES:
        yield field_not_supported(f"{path}.type", kind, _TYPES)
    properties, values = source.get("properties") or {}, source.get("additionalProperties")
    if properties and values:
        yield field_forbidden(f"{path}.additionalProperties", "mutual exclusive with properties")
    for name, child in properties.items():
        yield from _schema_errors(child, f"{path}.properties[{name}]")
    if isinstance(values, dict):
        yield from _schema_errors(values, f"{path}.additionalProperties")
    items = source.get("items")
    if kind == "array" and not isinstance(items, dict):
        yield field_required(f"{path}.items", "must be specified")
    if isinstance(items, dict):
        yield from _schema_errors(items, f"{path}.items")
    if source.get("x-kubernetes-list-type") == "map" and not source.get("x-kubernetes-list-map-keys"):
        yield field_required(f"{path}.x-kubernetes-list-map-keys", "must not be empty if x-kubernetes-list-type is map")
    if source.get("uniqueItems"):
        yield field_forbidden(f"{path}.uniqueItems", "uniqueItems cannot be set to true since the runtime complexity "
                              "becomes quadratic")  # fmt: skip
