"""Protobuf bodies."""

import base64
from typing import Any

import pytest

from longshore_devcluster.apiserver.errors import ApiError
from longshore_devcluster.apiserver.protobuf import decode_envelope


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def data(field: int, *parts: bytes | str) -> bytes:
    body = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
    return _varint(field << 3 | 2) + _varint(len(body)) + body


def _body(api_version: str, kind: str, *fields: bytes) -> bytes:
    return b"k8s\0" + data(1, data(1, api_version), data(2, kind)) + data(2, *fields)


def _metadata(name: str, *rest: bytes) -> bytes:
    return data(1, data(1, name), *rest)


def test_a_secret_keeps_its_bytes() -> None:
    entry = data(2, data(1, "k"), data(2, b"\x00\xff"))
    secret = decode_envelope(_body("v1", "Secret", _metadata("s"), entry, data(3, "Opaque")))
    assert secret == {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "type": "Opaque",
        "data": {"k": base64.b64encode(b"\x00\xff").decode()},
    }  # fmt: skip


def test_embedded_messages_lie_inline_in_json() -> None:
    mount = data(1, data(1, "v"), data(2, data(19, data(1, data(1, "cm")), number(3, 420))))
    pod = decode_envelope(_body("v1", "Pod", _metadata("p"), data(2, mount)))
    assert pod["spec"]["volumes"] == [{"name": "v", "configMap": {"name": "cm", "defaultMode": 420}}]


def test_zero_means_unset_except_for_pointers() -> None:
    spec = data(2, number(1, 0), number(5, 0), data(2, b""))
    deployment = decode_envelope(_body("apps/v1", "Deployment", _metadata("d"), spec))
    assert deployment["spec"] == {"replicas": 0, "selector": {}}


@pytest.mark.parametrize(
    ("fields", "expected"), [((number(1, 0), number(2, 80)), 80), ((number(1, 1), data(3, "http")), "http")]
)
def test_numbers_or_names(fields: tuple[bytes, ...], expected: Any) -> None:
    port = data(1, number(3, 1), data(4, *fields))
    service = decode_envelope(_body("v1", "Service", _metadata("s"), data(2, port)))
    assert service["spec"]["ports"] == [{"port": 1, "targetPort": expected}]


def test_times_are_written_out() -> None:
    lease_spec = data(2, data(4, number(1, 1767225600), number(2, 123456000)))
    lease = decode_envelope(_body("coordination.k8s.io/v1", "Lease", _metadata("l"), lease_spec))
    assert lease["spec"]["renewTime"] == "2026-01-01T00:00:00.123456Z"


def test_negative_numbers() -> None:
    spec = data(2, number(4, (1 << 64) - 1))
    assert decode_envelope(_body("v1", "Pod", _metadata("p"), spec))["spec"]["terminationGracePeriodSeconds"] == -1


@pytest.mark.parametrize("body", [b"", b"{}", b"k8s\0\xff", _body("v1", "Unheard", _metadata("x"))])
def test_what_cannot_be_read_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(ApiError) as error:
        decode_envelope(body)
    assert error.value.code == 400
