"""Addresses of services that a job asks."""

import re
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

_PATTERN: Final = r"^https?://([^\s/?#@]*@)?([0-9A-Za-z_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?([/?#]\S*)?$"
_PARTS: Final = re.compile(_PATTERN)
_NAME: Final = re.compile(r"([0-9A-Za-z_]([0-9A-Za-z_-]*[0-9A-Za-z_])?\.)+")
_MAX_PORT: Final = 65_535
ADDRESS_ERROR: Final = "address"
"""Type of the error of a value that is no address; it may hold a password, so it is not shown."""
_HEXADECIMAL: Final = re.compile(r"0[xX][0-9A-Fa-f]*")
"""A last label by which resolvers read a whole host as a number."""

METADATA_NETWORKS_V4: Final = ("169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32")
"""Where clouds tell machines their credentials: link-local addresses (AWS, Google, Azure, Oracle and others), Alibaba,
Azure's WireServer, Oracle's older one."""
_NAT64: Final = IPv6Network("64:ff9b::/96")
"""Addresses whose last bits are the IPv4 address to which a translator sends packets (RFC 6052)."""
_LOCAL_NAT64: Final = IPv6Network("64:ff9b:1::/48")
"""The same of translators that choose where in an address the IPv4 address is (RFC 8215)."""
_LOCAL_PREFIXES: Final = (48, 56, 64)
"""Numbers of bits before the IPv4 address, besides 96, that fit a block of those."""


def _translated(prefix: IPv6Address) -> list[IPv6Network]:
    """Return the metadata networks as a translator with a prefix of 96 bits is asked for them."""
    first_bits = int(prefix) >> 32 << 32
    return [
        IPv6Network((first_bits | int(one.network_address), 96 + one.prefixlen))
        for one in map(IPv4Network, METADATA_NETWORKS_V4)
    ]


METADATA_NETWORKS_V6: Final = (
    "fe80::/10", "fd00:ec2::/32", "fd20:ce::254/128", "fd00:42::42/128",
    *map(str, _translated(_NAT64.network_address)), str(_LOCAL_NAT64),
)  # fmt: skip
"""The same over IPv6: link-local addresses, AWS, Google, Scaleway, and what NAT64 translates to those above."""
METADATA_HOSTS: Final = frozenset(
    {
        "metadata", "metadata.google.internal", "metadata.goog", "metadata.azure.internal", "metadata.tencentyun.com",
        "instance-data", "instance-data.ec2.internal", "metadata.platformequinix.com",
    }
)  # fmt: skip
"""Names of the same."""
_COMPATIBLE: Final = IPv6Network("::/96")
_METADATA: Final = tuple(
    ip_network(one) for one in (*METADATA_NETWORKS_V4, *METADATA_NETWORKS_V6) if one != str(_LOCAL_NAT64)
)


def _address(value: Any) -> Any:
    """Check what the pattern checks, with a sentence for people, and host and port more closely than a pattern can.

    pydantic's own URLs read mistakes as a browser does, `http:///score` as host `score`; who asks there does not.
    """
    if not isinstance(value, str):
        return value
    parts = _PARTS.fullmatch(value)
    if parts is None or not value.isprintable() or not _is_host(parts[2]) or not _is_port(parts[3]):
        raise PydanticCustomError(
            ADDRESS_ERROR, f"must be http:// or https://, a host, and if a port then one from 1 to {_MAX_PORT}"
        )
    if is_metadata(parts[2]):
        raise PydanticCustomError(
            ADDRESS_ERROR, "must not be the metadata service of a cloud, which gives out credentials"
        )
    return value


def is_metadata(host: str) -> bool:
    """Return whether a host of a URL is one from which machines of a cloud get their credentials."""
    name = host.rstrip(".").lower()
    try:
        address = ip_address(name.strip("[]"))
    except ValueError:
        return name in METADATA_HOSTS
    return any(one in network for one in (address, *_embedded(address)) for network in _METADATA)


def _embedded(address: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """Return the IPv4 addresses that an IPv6 address stands for: mapped or compatible ones, 6to4, and NAT64."""
    if isinstance(address, IPv4Address):
        return []
    found = [one for one in (address.ipv4_mapped, address.sixtofour) if one is not None]
    if any(address in network for network in (_COMPATIBLE, _NAT64, _LOCAL_NAT64)):
        found.append(IPv4Address(int(address) & 0xFFFFFFFF))
    if address in _LOCAL_NAT64:
        joined = int(address) >> 64 << 56 | int(address) & ((1 << 56) - 1)  # Bits 64 to 71 are left out.
        found += [IPv4Address(joined >> (120 - prefix - 32) & 0xFFFFFFFF) for prefix in _LOCAL_PREFIXES]
    return found


def without_credentials(url: str) -> str:
    """Return a URL as it may be shown: user and password, query and fragment may be secrets."""
    parts = _PARTS.fullmatch(url)
    if parts is None:
        return "(an address that cannot be read)"
    scheme, _, _ = url.partition("://")
    path = re.split(r"[?#]", parts[4] or "", maxsplit=1)[0]
    return f"{scheme}://{parts[2]}{parts[3] or ''}{path}"


_ADDRESS: Final = re.compile(r"\b(?:https?|wss?)://[^\s\"'<>]+", re.IGNORECASE)


def shown(text: str) -> str:
    """Return a text as others may see it: without what may be secret in the addresses in it."""
    return redacted(_ADDRESS.sub(lambda found: without_credentials(found[0]), text))


_CREDENTIALS: Final = re.compile(r"(?<=://)[^\s\"<>]+@")
"""Up to the last `@`: passwords that nobody has escaped contain what ends a host."""


def redacted(text: str) -> str:
    """Return a text of any kind without the credentials of the URLs in it."""
    return _CREDENTIALS.sub("", text) if "://" in text else text


def _is_host(host: str) -> bool:
    try:
        if host.startswith("["):
            IPv6Address(host[1:-1])
        elif (last := host.rstrip(".").rpartition(".")[2]).isdigit() or _HEXADECIMAL.fullmatch(last):
            IPv4Address(host)
    except AddressValueError:
        return False
    return host.startswith("[") or _NAME.fullmatch(f"{host.removesuffix('.')}.") is not None


def _is_port(colon_and_port: str | None) -> bool:
    return colon_and_port is None or 1 <= int(colon_and_port[1:]) <= _MAX_PORT


def _block(value: str) -> str:
    """Check a block of addresses; raises the pydantic error of one that cannot be read or is closed to jobs."""
    try:
        block = ip_network(value)
    except ValueError as error:
        raise PydanticCustomError(
            ADDRESS_ERROR, "must be a block of addresses such as 203.0.113.0/24, whose bits beyond the prefix are 0"
        ) from error
    if isinstance(block, IPv6Network) and block.subnet_of(_LOCAL_NAT64) and block.prefixlen < 96:
        raise PydanticCustomError(
            ADDRESS_ERROR,
            f"a block within {_LOCAL_NAT64}, where NAT64 puts IPv4 addresses, must have a prefix of 96 bits or more",
        )
    if is_metadata(str(block.network_address)):
        raise PydanticCustomError(
            ADDRESS_ERROR, "must not be the metadata service of a cloud, which gives out credentials"
        )
    return value


def metadata_within(cidr: str) -> list[str]:
    """Return the blocks within another one in which clouds tell their machines credentials."""
    block: Any = ip_network(cidr)
    if block.version == 4:  # IPv6 may be written with dots.
        networks: list[Any] = [*map(IPv4Network, METADATA_NETWORKS_V4)]
    elif block.subnet_of(_LOCAL_NAT64):
        networks = _translated(block.network_address)
    else:
        networks = [*map(IPv6Network, METADATA_NETWORKS_V6)]
    return [str(one) for one in networks if block.supernet_of(one)]


AddressBlock = Annotated[str, Field(max_length=64, pattern=r"^[0-9A-Fa-f.:]+/[0-9]{1,3}$"), AfterValidator(_block)]
"""A block of IP addresses in CIDR notation."""

HttpAddress = Annotated[str, Field(max_length=2_048, pattern=_PATTERN), BeforeValidator(_address)]
"""A URL with a host, and with a port that can be asked if it names one."""
