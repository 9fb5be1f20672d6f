"""From a request's body to an object: parsing, type checks and the search for unknown fields."""

import binascii
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import yaml
from yaml.constructor import ConstructorError

from longshore_devcluster.apiserver.errors import (
    ApiError,
    ObjectRef,
    bad_request,
    field_invalid,
    invalid,
    unsupported_media,
)
from longshore_devcluster.apiserver.resources import Resource
from longshore_devcluster.apiserver.schema.node import Json, Object, Schema
from longshore_kube.quantities import QUANTITY, canonical

JSON, YAML, PROTOBUF = "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"
BODY_TYPES = (JSON, YAML, PROTOBUF)
_MICRO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


class _Duplicates(dict[str, Any]):
    """A JSON object that remembers keys which stood in it twice."""

    doubled: tuple[str, ...] = ()


class _Strings(yaml.SafeLoader):
    """YAML as the API reads it: timestamps stay text, and numbers are those of JSON."""

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        """Refuse what is infinite or no number."""
        value = super().construct_yaml_float(node)
        if not math.isfinite(value):
            shown = "NaN" if math.isnan(value) else f"{value:+}".replace("inf", "Inf")
            raise ConstructorError(None, None, f"json: unsupported value: {shown}", node.start_mark)
        return value


_Strings.add_constructor("tag:yaml.org,2002:float", _Strings.construct_yaml_float)
_Strings.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def media_type(content_type: str) -> str:
    return content_type.split(";", 1)[0].strip().lower()


def parse_yaml(text: bytes) -> Json:
    """Parse YAML or JSON; raises yaml.YAMLError."""
    try:
        return orjson.loads(text)  # YAML 1.1 takes a JSON number such as 1e-06 for a string.
    except orjson.JSONDecodeError:
        return yaml.load(text, Loader=_Strings)


def parse_body(body: bytes, content_type: str, kind: str) -> Json:
    """Return the JSON value of a body; ``kind`` is only for messages."""
    media = media_type(content_type) or JSON
    if media not in BODY_TYPES:
        raise unsupported_media(BODY_TYPES)
    if media == PROTOBUF:
        from longshore_devcluster.apiserver.protobuf import decode_envelope

        return decode_envelope(body)
    lead = f"the object provided is unrecognized (must be of type {kind}): "
    if not body.strip():
        why = "couldn't get version/kind; json parse error: unexpected end of JSON input (<empty>)"
        raise bad_request(lead + why)
    if media == YAML or body.lstrip()[:1] != b"{":
        return _from_yaml(body, lead)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        why = _json_complaint(error)
        shown = body.decode(errors="replace")
        raise bad_request(f"{lead}couldn't get version/kind; json parse error: {why} ({_start(shown)})") from error


def _from_yaml(body: bytes, lead: str) -> Json:
    try:
        return parse_yaml(body)
    except yaml.YAMLError as error:
        shown = binascii.hexlify(body[:16]).decode()
        raise bad_request(f"{lead}yaml: {_yaml_complaint(error)} ({shown})") from error


def _yaml_complaint(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return str(error)


def _json_complaint(error: orjson.JSONDecodeError) -> str:
    if "end of data" in str(error) or "EOF" in str(error):
        return "unexpected end of JSON input"
    return f"invalid character at offset {error.pos}"


def _start(text: str) -> str:
    return text if len(text) <= 64 else text[:24] + " ..."


def check_type_meta(resource: Resource, obj: Json) -> Object:
    """Check apiVersion and kind of a body, and supply them where the resource is built in."""
    kind, group_version = resource.kind, resource.group_version
    lead = f"the object provided is unrecognized (must be of type {kind}): "
    if not isinstance(obj, dict):
        raise bad_request(f"{lead}couldn't get version/kind; json parse error: a JSON object is required")
    if not resource.custom:
        obj.setdefault("apiVersion", group_version)
        obj.setdefault("kind", kind)
    if not obj.get("kind"):
        shown = orjson.dumps(obj).decode()
        raise bad_request(f"{lead}Object 'Kind' is missing in '{shown}' ({_start(shown)})")
    if obj["kind"] != kind:
        if resource.custom:
            name = str((obj.get("metadata") or {}).get("name", ""))
            cause = field_invalid("kind", obj["kind"], f"must be {kind}")
            raise invalid(ObjectRef(resource.group, obj["kind"], name), [cause])
        version = obj["apiVersion"].rsplit("/", 1)[-1]
        raise bad_request(
            f'{obj["kind"]} in version "{version}" cannot be handled as a {kind}: converting '
            f"({version}.{obj['kind']}) to (core.{kind}): unknown conversion"
        )
    if obj.get("apiVersion") != group_version:
        raise bad_request(
            f"the API version in the data ({obj.get('apiVersion')}) does not match the expected API version "
            f"({group_version})"
        )
    if not isinstance(obj.setdefault("metadata", {}), dict):
        obj["metadata"] = {}
    return obj


@dataclass(slots=True)
class _Walk:
    """One pass over a built-in object: drops what Go's decoder would drop and notes what it does not know."""

    root: str
    unknown: list[str] = field(default_factory=list)

    def clean(self, value: Json, schema: Schema, path: str) -> Json:
        kind = schema.kind
        if kind == "object":
            return self._object(value, schema, path)
        if kind == "map" and isinstance(value, dict):
            assert schema.item is not None
            return {k: self.clean(v, schema.item, path) for k, v in value.items() if v is not None}
        if kind == "list" and isinstance(value, list):
            assert schema.item is not None
            return [self.clean(v, schema.item, f"{path}[{i}]") for i, v in enumerate(value) if v is not None]
        complaint = _type_complaint(value, kind)
        if complaint:
            raise _Mistyped(complaint.format(path=f"{self.root}.{_plain(path)}" if path else self.root))
        return canonical(str(value)) if kind == "quantity" else value

    def _object(self, value: Json, schema: Schema, path: str) -> Json:
        if not isinstance(value, dict):
            shown = f"{self.root}.{_plain(path)}" if path else self.root
            raise _Mistyped(f"json: cannot unmarshal {_go_kind(value)} into Go struct field {shown} of type struct")
        kept = {}
        for name, member in value.items():
            member_path = f"{path}.{name}" if path else name
            node = schema.properties.get(name)
            if node is None:
                if schema.preserve_unknown or (not path and name in ("apiVersion", "kind")):
                    kept[name] = member
                else:
                    self.unknown.append(member_path)
            elif member is not None:
                cleaned = self.clean(member, node, member_path)
                if cleaned or node.kind not in ("map", "list"):
                    kept[name] = cleaned
        return kept


class _Mistyped(Exception):
    pass


def _plain(path: str) -> str:
    return re.sub(r"\[\d+\]", "", path)


def _go_kind(value: Json) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, dict) else "array" if isinstance(value, list) else "number"


_EXPECTED: dict[str, tuple[tuple[type, ...], str]] = {
    "string": ((str,), "string"),
    "time": ((str,), "string"),
    "microtime": ((str,), "string"),
    "bytes": ((str,), "[]byte"),
    "int": ((int,), "int32"),
    "number": ((int, float), "float64"),
    "bool": ((bool,), "bool"),
    "intorstring": ((int, str), "intstr.IntOrString"),
    "quantity": ((int, float, str), "resource.Quantity"),
    "map": ((dict,), "map"),
    "list": ((list,), "slice"),
}


def _type_complaint(value: Json, kind: str) -> str:
    if kind == "any":
        return ""
    types, go_type = _EXPECTED[kind]
    if not isinstance(value, types) or (isinstance(value, bool) and kind != "bool"):
        return f"json: cannot unmarshal {_go_kind(value)} into Go struct field {{path}} of type {go_type}"
    if kind == "quantity" and not QUANTITY.fullmatch(str(value)):
        return "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    if kind == "microtime" and not _MICRO.fullmatch(str(value)):
        return _time_complaint(str(value), "2006-01-02T15:04:05.000000Z07:00", ".000000")
    if kind == "time" and not _TIME.fullmatch(str(value)):
        return _time_complaint(str(value), "2006-01-02T15:04:05Z07:00", "")
    return ""


def _time_complaint(value: str, layout: str, part: str) -> str:
    rest = value[19:] if len(value) > 19 else value
    return f'parsing time "{value}" as "{layout}": cannot parse "{rest}" as "{part or "2006"}"'


def clean_builtin(obj: Object, schema: Schema, kind: str) -> tuple[Object, list[str]]:
    """Return the object as a typed decoder keeps it, and the paths of the fields it does not know. Raises 400."""
    walk = _Walk(kind)
    version = str(obj.get("apiVersion", "v1")).rsplit("/", 1)[-1]
    try:
        cleaned: Object = walk.clean(obj, schema, "")
    except _Mistyped as error:
        raise bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {error}') from error
    cleaned.setdefault("metadata", {})
    return cleaned, walk.unknown


def strict_error(kind: str, version: str, complaints: list[str]) -> ApiError:
    listed = ", ".join(complaints)
    return bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: strict decoding error: {listed}')


def duplicate_fields(body: bytes) -> list[str]:
    """Return paths of JSON members that stand twice in one object."""
    import json

    def collect(pairs: list[tuple[str, Json]]) -> _Duplicates:
        found = _Duplicates(pairs)
        names = [name for name, _ in pairs]
        found.doubled = tuple(sorted({name for name in names if names.count(name) > 1}))
        return found

    try:
        root = json.loads(body, object_pairs_hook=collect)
    except ValueError:
        return []
    return list(_doubled(root, ""))


def _doubled(value: Json, path: str) -> Iterator[str]:
    if isinstance(value, _Duplicates):
        yield from (f"{path}{name}" for name in value.doubled)
        for name, member in value.items():
            yield from _doubled(member, f"{path}{name}.")
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _doubled(member, f"{path[:-1]}[{index}].")
