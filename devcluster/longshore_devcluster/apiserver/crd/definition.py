"""Validation of CustomResourceDefinitions."""

from collections.abc import Iterator

from longshore_devcluster.apiserver.crd.cel import rule_errors
from longshore_devcluster.apiserver.crd.default_checks import default_errors, metadata_errors
from longshore_devcluster.apiserver.crd.jsonpath import BadPath, steps
from longshore_devcluster.apiserver.crd.schema_form import schema_form_errors
from longshore_devcluster.apiserver.crd.structural import structural
from longshore_devcluster.apiserver.errors import (
    FieldError,
    field_invalid,
    field_not_supported,
    field_required,
)
from longshore_devcluster.apiserver.schema.node import Object

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")


def definition_errors(new: Object, old: Object | None) -> list[FieldError]:
    """Return the errors of a definition."""
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
    structure = [*metadata_errors(source, path), *schema_form_errors(source, path)]
    yield from structure
    if not structure:
        schema = structural(source, root=True)
        yield from rule_errors(schema, path)
        yield from default_errors(schema, path)
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
