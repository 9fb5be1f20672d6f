"""Sum values over the replicas of the fake trainer: rank 0 collects a JSON line from each, and answers with the sum."""

import json
import socket
import time

from longshore_runtime.backends.world import World

_MEETING_S = 60.0


class FakeWorld:
    """Connections between the replicas. The loss of a replica raises ConnectionError in the others."""

    def __init__(self, world: World) -> None:
        """Meet the other replicas; raises OSError if one does not come."""
        if world.size == 1:
            self._sockets: list[socket.socket] = []
        elif world.rank == 0:
            with socket.create_server((world.host, world.port)) as server:
                server.settimeout(_MEETING_S)
                self._sockets = [server.accept()[0] for _ in range(world.size - 1)]
        else:
            self._sockets = [_connect(world.host, world.port)]
        self._rank = world.rank
        self._peers = [peer.makefile("rw", encoding="utf-8") for peer in self._sockets]

    def add_up(self, values: list[int]) -> list[int]:
        """Sum over all replicas, element by element; every replica must call this."""
        if self._rank == 0:
            collected = [values, *(self._receive(place) for place in range(len(self._peers)))]
            total = [sum(column) for column in zip(*collected, strict=True)]
            self._send(total)
            return total
        self._send(values)
        return self._receive(0)

    def close(self) -> None:
        """Close the connections."""
        for peer in self._peers:
            peer.close()
        for connection in self._sockets:
            connection.close()

    def _send(self, values: list[int]) -> None:
        for peer in self._peers:
            peer.write(json.dumps(values) + "\n")
            peer.flush()

    def _receive(self, place: int) -> list[int]:
        line = self._peers[place].readline()
        if not line:
            raise ConnectionError("Connection closed by another trainer replica")
        values: list[int] = json.loads(line)
        return values


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
