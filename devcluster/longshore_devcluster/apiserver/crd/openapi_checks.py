"""Validation of custom resources against their schema, with the real server's messages."""

import re
from collections.abc import Iterator
from datetime import datetime

import orjson
import re2

from longshore_devcluster.apiserver.crd.structural import structural
from longshore_devcluster.apiserver.errors import (
    FieldError,
    compact,
    field_duplicate,
    field_invalid,
    field_invalid_text,
    field_not_supported,
    field_required,
)
from longshore_devcluster.apiserver.schema.node import Json, Schema

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "int": (int,), "number": (int, float), "bool": (bool,), "object": (dict,), "map": (dict,),
    "list": (list,), "intorstring": (int, str),
}  # fmt: skip
_NAMES = {
    "string": "string", "int": "integer", "number": "number", "bool": "boolean", "object": "object",
    "map": "object", "list": "array",
}  # fmt: skip


def type_name(value: Json) -> str:
    """Return a value's type in JSON schema's words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return {str: "string", int: "integer", float: "number", dict: "object", list: "array"}[type(value)]


def schema_errors(value: Json, schema: Schema, path: str = "") -> Iterator[FieldError]:
    """Yield the errors of a value and everything below it."""
    if value is None:
        if not schema.nullable and schema.kind != "any":
            yield _type_error(value, schema, path)
        return
    expected = _TYPES.get(schema.kind)
    is_whole = schema.kind == "int" and isinstance(value, float) and value.is_integer()
    if expected and not is_whole:
        wrong = not isinstance(value, expected) or (isinstance(value, bool) and schema.kind != "bool")
        if wrong:
            yield _type_error(value, schema, path)
            return
    yield from _limit_errors(value, schema, path)
    yield from _combination_errors(value, schema, path)
    if isinstance(value, dict):
        yield from _member_errors(value, schema, path)
    elif isinstance(value, list) and schema.item is not None:
        for index, item in enumerate(value):
            yield from schema_errors(item, schema.item, f"{path}[{index}]")
        yield from _uniqueness_errors(value, schema, path)


def _type_error(value: Json, schema: Schema, path: str) -> FieldError:
    found, wanted = type_name(value), _NAMES.get(schema.kind, "integer,string")
    shown = f'"{found}"'
    detail = f'{path} in body must be of type {wanted}: "{found}"'
    return field_invalid_text(path or "<nil>", shown, detail, "FieldValueTypeInvalid")


def _member_errors(value: dict[str, Json], schema: Schema, path: str) -> Iterator[FieldError]:
    prefix = f"{path}." if path else ""
    for name in sorted(schema.required):
        if name not in value:
            yield field_required(prefix + name)
    for name, member in sorted(value.items()):
        if name == "metadata" and not path:
            continue
        node = schema.child(name)
        if node is not None:
            shown = prefix + name if name in schema.properties else f"{path}[{name}]"
            yield from schema_errors(member, node, shown)


def _uniqueness_errors(items: list[Json], schema: Schema, path: str) -> Iterator[FieldError]:
    if schema.list_type == "atomic":
        return
    seen: set[bytes] = set()
    for index, item in enumerate(items):
        identity = item
        if schema.list_type == "map":
            if not isinstance(item, dict):
                continue
            identity = {name: item[name] for name in schema.map_keys if name in item}
        key = orjson.dumps(identity, option=orjson.OPT_SORT_KEYS)
        if key in seen:
            yield field_duplicate(f"{path}[{index}]", identity)
        seen.add(key)


def _combination_errors(value: Json, schema: Schema, path: str) -> Iterator[FieldError]:
    limits = schema.limits.values
    matches = {
        name: [not any(schema_errors(value, structural(part), path)) for part in limits[name]]
        for name in ("allOf", "anyOf", "oneOf")
        if limits.get(name)
    }
    if "allOf" in matches and not all(matches["allOf"]):
        yield field_invalid(path, value, f"{path} in body must validate all the schemas (allOf)")
    if "anyOf" in matches and not any(matches["anyOf"]):
        yield field_invalid(path, value, f"{path} in body must validate at least one schema (anyOf)")
    if "oneOf" in matches and sum(matches["oneOf"]) != 1:
        yield field_invalid(path, value, f"{path} in body must validate one and only one schema (oneOf)")
    if limits.get("not") and not any(schema_errors(value, structural(limits["not"]), path)):
        yield field_invalid(path, value, f"{path} in body must not validate the schema (not)")


def _limit_errors(value: Json, schema: Schema, path: str) -> Iterator[FieldError]:
    limits = schema.limits.values
    if "enum" in limits and value not in limits["enum"]:
        yield field_not_supported(path, value, limits["enum"])
    if isinstance(value, str):
        yield from _string_errors(value, limits, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _number_errors(value, limits, path)
    elif isinstance(value, list):
        yield from _count_errors(len(value), limits, path, "Items", "items")
        if limits.get("uniqueItems") and len({orjson.dumps(i) for i in value}) != len(value):
            yield field_invalid(path, value, f"{path} in body shouldn't contain duplicates")
    elif isinstance(value, dict):
        yield from _count_errors(len(value), limits, path, "Properties", "properties")


def _string_errors(value: str, limits: dict[str, Json], path: str) -> Iterator[FieldError]:
    if "minLength" in limits and len(value) < limits["minLength"]:
        yield field_invalid(path, value, f"{path} in body should be at least {limits['minLength']} chars long")
    if "maxLength" in limits and len(value) > limits["maxLength"]:
        detail = f"may not be more than {limits['maxLength']} bytes"
        yield FieldError("FieldValueTooLong", path, f"Too long: {detail}")
    if "pattern" in limits and not re2.search(limits["pattern"], value):
        yield field_invalid(path, value, f"{path} in body should match '{limits['pattern']}'")
    if limits.get("format") and not _has_format(value, limits["format"]):
        name = limits["format"]
        why = f"{path} in body must be of type {name}: {compact(value)}"
        yield field_invalid_text(path, compact(value), why, "FieldValueTypeInvalid")


def _has_format(value: str, name: str) -> bool:
    if name in ("date-time", "datetime"):
        try:
            datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return False
        return "T" in value
    if name == "duration":
        return bool(re.fullmatch(r"[+-]?(\d+(\.\d*)?(ns|us|µs|ms|s|m|h))+|0", value))
    if name == "uuid":
        return bool(re.fullmatch(r"(?i)[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", value))
    if name == "ipv4":
        return bool(re.fullmatch(r"(\d{1,3}\.){3}\d{1,3}", value))
    return True


def _number_errors(value: float, limits: dict[str, Json], path: str) -> Iterator[FieldError]:
    if "minimum" in limits:
        low, exclusive = limits["minimum"], limits.get("exclusiveMinimum")
        if value < low or (exclusive and value == low):
            relation = "greater than" if exclusive else "greater than or equal to"
            yield field_invalid(path, value, f"{path} in body should be {relation} {low}")
    if "maximum" in limits:
        high, exclusive = limits["maximum"], limits.get("exclusiveMaximum")
        if value > high or (exclusive and value == high):
            relation = "less than" if exclusive else "less than or equal to"
            yield field_invalid(path, value, f"{path} in body should be {relation} {high}")
    if limits.get("multipleOf") and value % limits["multipleOf"]:
        yield field_invalid(path, value, f"{path} in body should be a multiple of {limits['multipleOf']}")


def _count_errors(count: int, limits: dict[str, Json], path: str, suffix: str, noun: str) -> Iterator[FieldError]:
    low, high = limits.get(f"min{suffix}"), limits.get(f"max{suffix}")
    if low is not None and count < low:
        yield field_invalid(path, count, f"{path} in body should have at least {low} {noun}")
    if high is not None and count > high:
        message = f"Too many: {count}: must have at most {high} items"
        yield FieldError("FieldValueTooMany", path, message)
