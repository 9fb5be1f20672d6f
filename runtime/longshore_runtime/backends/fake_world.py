"""Sum values over the replicas of the fake trainer: rank 0 collects a JSON line from each, and answers with the sum."""

import contextlib
import json
import socket
import time

from longshore_runtime.backends.world import World

_MEETING_S = 60.0
_FAILED = "Connection to another trainer replica failed"


class FakeWorld:
    """Connections between the replicas. The loss of a replica raises RuntimeError in the others, as gloo does."""

    def __init__(self, world: World) -> None:
        """Meet the other replicas; raises RuntimeError if one does not come."""
        try:
            self._sockets = _meet(world)
        except OSError as error:
            raise RuntimeError(f"{_FAILED}: {error}") from error
        self._rank = world.rank
        self._peers = [peer.makefile("rw", encoding="utf-8") for peer in self._sockets]

    def add_up(self, values: list[int]) -> list[int]:
        """Sum over all replicas, element by element; every replica must call this."""
        try:
            return self._added_up(values)
        except OSError as error:
            raise RuntimeError(f"{_FAILED}: {error}") from error

    def close(self) -> None:
        """Close the connections."""
        for peer in self._peers:
            with contextlib.suppress(OSError):  # What was still to be sent, to a replica that is gone.
                peer.close()
        for connection in self._sockets:
            connection.close()

    def _added_up(self, values: list[int]) -> list[int]:
        if self._rank == 0:
            collected = [values, *(self._receive(place) for place in range(len(self._peers)))]
            total = [sum(column) for column in zip(*collected, strict=True)]
            self._send(total)
            return total
        self._send(values)
        return self._receive(0)

    def _send(self, values: list[int]) -> None:
        for peer in self._peers:
            peer.write(json.dumps(values) + "\n")
            peer.flush()

    def _receive(self, place: int) -> list[int]:
        line = self._peers[place].readline()
        if not line:
            raise ConnectionError("it was closed")
        values: list[int] = json.loads(line)
        return values


def _meet(world: World) -> list[socket.socket]:
    """Return connections to all others on rank 0, to rank 0 on the others."""
    if world.size == 1:
        return []
    if world.rank > 0:
        return [_connect(world.host, world.port)]
    with socket.create_server((world.host, world.port)) as server:
        server.settimeout(_MEETING_S)
        return [server.accept()[0] for _ in range(world.size - 1)]


def _connect(host: str, port: int) -> socket.socket:
    """Connect to rank 0, as soon as it listens."""
    deadline_s = time.monotonic() + _MEETING_S
    while True:
        try:
            peer = socket.create_connection((host, port), timeout=_MEETING_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)
        else:
            peer.settimeout(None)
            return peer
