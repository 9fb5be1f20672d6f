r"""Kubernetes' protobuf bodies, read with the field numbers of the type table.

A body is ``k8s\0`` and a ``runtime.Unknown`` (1: apiVersion and kind, 2: the object's bytes).
"""

import base64
from collections.abc import Iterator
from datetime import UTC, datetime

from longshore_devcluster.apiserver.errors import bad_request
from longshore_devcluster.apiserver.schema.builtin import builtin_types
from longshore_devcluster.apiserver.schema.node import Json, Object, Schema

_MAGIC = b"k8s\0"
# Fields that are pointers in Go: an explicit zero means something there, elsewhere it means "not set".
_POINTERS = frozenset(
    [
        "replicas",
        "terminationGracePeriodSeconds",
        "automountServiceAccountToken",
        "optional",
        "enableServiceLinks",
        "defaultMode",
        "mode",
        "runAsUser",
        "runAsGroup",
        "fsGroup",
        "runAsNonRoot",
        "allowPrivilegeEscalation",
        "readOnlyRootFilesystem",
        "privileged",
        "backoffLimit",
        "parallelism",
        "completions",
        "gracePeriodSeconds",
        "suspend",
        "immutable",
        "revisionHistoryLimit",
        "progressDeadlineSeconds",
        "tolerationSeconds",
        "activeDeadlineSeconds",
        "expirationSeconds",
        "storageClassName",
        "leaseTransitions",
        "hostUsers",
        "shareProcessNamespace",
        "ttlSecondsAfterFinished",
        "orphanDependents",
    ]
)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data):
            raise bad_request("proto: unexpected end of the message")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield pairs (field number, varint or bytes) of one message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            yield tag >> 3, data[at : at + size]
            at += size
        elif wire == 2:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise bad_request("proto: unexpected end of the message")
            yield tag >> 3, data[at : at + size]
            at += size
        else:
            raise bad_request(f"proto: wire type {wire} is not supported")


def decode_envelope(body: bytes) -> Object:
    """Return the object of a protobuf body, as JSON. Raises 400 for anything it cannot read."""
    if not body.startswith(_MAGIC):
        raise bad_request("the body does not start with the protobuf magic number")
    envelope = dict(_fields(body[len(_MAGIC) :]))
    type_meta = dict(_fields(_bytes(envelope.get(1, b""))))
    api_version, kind = _bytes(type_meta.get(1, b"")).decode(), _bytes(type_meta.get(2, b"")).decode()
    name = "CoreEvent" if (api_version, kind) == ("v1", "Event") else kind
    schema = builtin_types().messages.get(name)
    if schema is None or not schema.numbers:
        raise bad_request(f'no kind "{kind}" is registered for version "{api_version}" in protobuf')
    return {"apiVersion": api_version, "kind": kind, **decode_message(_bytes(envelope.get(2, b"")), schema)}


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise bad_request("proto: a length-delimited field was expected")
    return value


def decode_message(data: bytes, schema: Schema) -> Object:
    """Decode one message into a JSON object; unset fields are left out."""
    found: Object = {}
    for number, value in _fields(data):
        if number in schema.inlined:
            found.update(decode_message(_bytes(value), schema.inlined[number]))
            continue
        name = schema.numbers.get(number)
        if name is None:
            continue
        node = schema.properties[name]
        if node.kind == "list":
            assert node.item is not None
            found.setdefault(name, []).append(_scalar(value, node.item))
        elif node.kind == "map":
            assert node.item is not None
            found.setdefault(name, {}).update([_entry(_bytes(value), node.item)])
        else:
            decoded = _scalar(value, node)
            if decoded or decoded == {} or name in _POINTERS:
                found[name] = decoded
    return {name: value for name, value in found.items() if value is not None}


def _entry(data: bytes, item: Schema) -> tuple[str, Json]:
    parts = dict(_fields(data))
    empty: int | bytes = 0 if item.kind in ("int", "bool") else b""
    return _bytes(parts.get(1, b"")).decode(), _scalar(parts.get(2, empty), item)


def _scalar(value: int | bytes, node: Schema) -> Json:
    kind = node.kind
    if kind == "int":
        assert isinstance(value, int)
        return value - (1 << 64) if value >= 1 << 63 else value
    if kind == "bool":
        return bool(value)
    data = _bytes(value)
    if kind == "string":
        return data.decode()
    if kind == "bytes":
        return base64.b64encode(data).decode()
    if kind in ("time", "microtime"):
        return _time(data, micro=kind == "microtime")
    if kind == "quantity":
        return _bytes(dict(_fields(data)).get(1, b"")).decode()
    if kind == "intorstring":
        parts = dict(_fields(data))
        return _bytes(parts.get(3, b"")).decode() if parts.get(1) else parts.get(2, 0)
    if kind == "list":  # a named slice (such as the values of a review's ``extra``) is a message of its own
        assert node.item is not None
        return [_scalar(member, node.item) for _, member in _fields(data)]
    if kind == "object":
        return decode_message(data, node)
    raise bad_request(f"proto: a field of kind {kind} cannot be read")


def _time(data: bytes, *, micro: bool) -> str | None:
    parts = dict(_fields(data))
    seconds, nanos = parts.get(1, 0), parts.get(2, 0)
    assert isinstance(seconds, int) and isinstance(nanos, int)
    if seconds == 0 or seconds >= 1 << 63:  # Go's zero time
        return None
    moment = datetime.fromtimestamp(seconds, UTC)
    whole = moment.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{nanos // 1000:06d}Z" if micro else f"{whole}Z"
