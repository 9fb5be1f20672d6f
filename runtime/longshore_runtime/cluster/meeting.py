"""Reserve a port of this pod, at which processes of several pods meet."""

import os
import socket
from dataclasses import dataclass

from longshore.api import contract


@dataclass(frozen=True)
class ReservedPort:
    """Address and port at which nobody else listens as long as this object is there."""

    host: str
    port: int
    _socket: socket.socket

    @classmethod
    def of_this_pod(cls) -> "ReservedPort":
        """Reserve a free port.

        torch listens at every address, so the port is free at every one. Who listens there later may share it with a
        socket that does not listen, as long as both set SO_REUSEADDR.
        """
        ip = os.environ[contract.ENV_POD_IP]
        reserved = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", 0))
        return cls(ip, reserved.getsockname()[1], reserved)

    @property
    def address(self) -> tuple[str, int]:
        """Address of the pod, and port."""
        return self.host, self.port
