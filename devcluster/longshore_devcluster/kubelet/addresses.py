"""Loopback addresses for nodes and pods: 127.N.x.y, where N belongs to one cluster of this machine."""

import socket

_FIRST_POD = 1 << 8
_LAST_POD = (1 << 16) - 2


class Addresses:
    """The addresses of one cluster. A second cluster on the machine gets a different N.

    The claim to N is an abstract Unix socket, which the system releases whenever and however this process ends.
    """

    def __init__(self) -> None:
        self._claim, self._octet = _claim_octet()
        self._given: dict[str, int] = {}
        self._next = _FIRST_POD

    @property
    def network(self) -> str:
        """Prefix of all addresses of the cluster: 127.N."""
        return f"127.{self._octet}"

    def node(self, index: int) -> str:
        """Return the address of the node with this number, from 0."""
        return self._text(index + 1)

    def pod(self, uid: str, before: str = "") -> str:
        """Return the address of a pod; the one it had before, if that is still this cluster's and free.

        Raises:
            RuntimeError: 65,000 pods have one at the same time.
        """
        if uid not in self._given:
            self._given[uid] = self._reusable(before) or self._fresh()
        return self._text(self._given[uid])

    def release(self, uid: str) -> None:
        """Take the address of a pod back."""
        self._given.pop(uid, None)

    def close(self) -> None:
        """Give up the claim."""
        self._claim.close()

    def _reusable(self, address: str) -> int | None:
        parts = [int(part) for part in address.split(".")] if address else []
        if parts[:2] != [127, self._octet]:
            return None
        number = parts[2] << 8 | parts[3]
        return None if number in self._given.values() else number

    def _fresh(self) -> int:
        taken = set(self._given.values())
        for _ in range(_FIRST_POD, _LAST_POD + 1):
            number = self._next
            self._next = self._next + 1 if self._next < _LAST_POD else _FIRST_POD
            # Addresses ending in 0 or 255 look like networks to some programs.
            if number not in taken and number & 0xFF not in (0, 0xFF):
                return number
        raise RuntimeError("every pod address of the cluster is in use")

    def _text(self, number: int) -> str:
        return f"{self.network}.{number >> 8}.{number & 0xFF}"


def _claim_octet() -> tuple[socket.socket, int]:
    for octet in range(16, 250):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(f"\0longshore-devcluster-127.{octet}")
        except OSError:
            claim.close()
            continue
        return claim, octet
    raise RuntimeError("234 embedded clusters run on this machine already: stop some")
