"""The server that a pod of an environment runs beside Longshore's container, or the machine of `longshore check`."""

import asyncio
import os
from ipaddress import ip_address
from typing import Final

from longshore.api import contract
from longshore.api.environment import ServerContainer
from longshore_runtime.settings import host_port

_LOOPBACK: Final = "127.0.0.1"
_CONNECT_LIMIT_S: Final = 1.0
_TICK_S: Final = 0.5
"""Seconds between two looks at a server that runs."""


def address_of(server: ServerContainer) -> tuple[str, int]:
    """Return host and port of the server.

    Pods of the embedded cluster share the loopback device of their machine, where each has an address of its own.
    """
    pod_ip = os.environ.get(contract.ENV_POD_IP, _LOOPBACK)
    return pod_ip if ip_address(pod_ip).is_loopback else _LOOPBACK, server.port


def url_of(server: ServerContainer) -> str:
    """Return the address of the server as a URL."""
    return f"http://{host_port(*address_of(server))}"


async def is_up(server: ServerContainer) -> bool:
    """Return whether the server takes connections."""
    try:
        async with asyncio.timeout(_CONNECT_LIMIT_S):
            _, writer = await asyncio.open_connection(*address_of(server))
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def wait_until(server: ServerContainer, *, up: bool) -> None:
    """Return once the server takes connections, or with `up=False` once it takes none any more."""
    while True:
        if await is_up(server) == up:
            return
        await asyncio.sleep(_TICK_S)
