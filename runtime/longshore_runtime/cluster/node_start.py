"""Program that starts a pod's Ray node: a separate process, whose session contains all processes of the node."""

import json
import os
from pathlib import Path
from typing import Any, Final

from longshore_runtime.cluster.deaths import ENV_FILE
from longshore_runtime.cluster.fork_server import ForkServer
from longshore_runtime.process.large_imports import without_collections

_SOCKET: Final = "workers"
_DEATHS: Final = "deaths.jsonl"
_CHUNK_BYTES: Final = 65536


def main() -> None:
    """Start the node that one line of JSON on standard input describes (see `NodeStarter`); end of file: none."""
    order = _read_order()
    if order is None:
        return
    os.environ.update(order["environment"])
    node = order["node"]
    if node["address"] is None:  # No actor of a job is placed on the head.
        _start(node, [])
        return
    os.environ[ENV_FILE] = str(Path(node["temp_dir"], _DEATHS))
    server = ForkServer(Path(node["temp_dir"], _SOCKET), order["imports"])
    server.begin(_start(node, server.launcher))


def _read_order() -> dict[str, Any] | None:
    # Without buffers: the server of forks waits for the end of the same file.
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(0, _CHUNK_BYTES)
        if not data:
            return None
        line += data
    order: dict[str, Any] = json.loads(line)
    return order


def _start(options: dict[str, Any], launcher: list[str]) -> dict[str, str]:
    # It imports Ray, which the server must not have.
    with without_collections():
        from longshore_runtime.cluster.ray_start import NodeOptions, start

    return start(NodeOptions(**options), launcher)


if __name__ == "__main__":
    main()
