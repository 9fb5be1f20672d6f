"""Addresses of services that a job asks."""

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

_PATTERN: Final = r"^https?://([^\s/?#@]*@)?([0-9A-Za-z_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?([/?#]\S*)?$"
_PARTS: Final = re.compile(_PATTERN)
_NAME: Final = re.compile(r"([0-9A-Za-z_]([0-9A-Za-z_-]*[0-9A-Za-z_])?\.)+")
_MAX_PORT: Final = 65_535


def _address(value: Any) -> Any:
    """Tells in words what the pattern says, and looks closer at host and port than a pattern can.

    pydantic's own URLs read mistakes as a browser does, `http:///score` as host `score`; who asks there does not.
    """
    if not isinstance(value, str):
        return value
    parts = _PARTS.fullmatch(value)
    if parts is None or not value.isprintable() or not _is_host(parts[2]) or not _is_port(parts[3]):
        raise PydanticCustomError(
            "address", f"must be http:// or https://, a host, and if a port then one from 1 to {_MAX_PORT}"
        )
    return value


def _is_host(host: str) -> bool:
    try:
        if host.startswith("["):
            IPv6Address(host[1:-1])
        elif host.rstrip(".").rpartition(".")[2].isdigit():
            IPv4Address(host)
    except AddressValueError:
        return False
    return host.startswith("[") or _NAME.fullmatch(f"{host.removesuffix('.')}.") is not None


def _is_port(colon_and_port: str | None) -> bool:
    return colon_and_port is None or 1 <= int(colon_and_port[1:]) <= _MAX_PORT


HttpAddress = Annotated[str, Field(max_length=2_048, pattern=_PATTERN), BeforeValidator(_address)]
"""A URL with a host, and with a port that can be asked if it names one."""
