"""Program that starts a pod's Ray node: a process of its own, whose session is that of all that belongs to the node."""

import argparse
import json
from pathlib import Path
from typing import Any, Final

from longshore_runtime.cluster.fork_server import ForkServer

_SOCKET: Final = "workers"


def main() -> None:
    """Start the node that the command line describes as JSON: `NodeOptions`, and the imports of its workers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("options", type=json.loads)
    parser.add_argument("imports", nargs="*")
    given = parser.parse_args()
    if given.options["address"] is None:  # No actor of a job is placed on the head.
        _start(given.options, [])
        return
    server = ForkServer(Path(given.options["temp_dir"], _SOCKET), given.imports)
    server.begin(_start(given.options, server.launcher))


def _start(options: dict[str, Any], launcher: list[str]) -> dict[str, str]:
    from longshore_runtime.cluster.ray_start import NodeOptions, start  # Imports Ray, which the server must not have.

    return start(NodeOptions(**options), launcher)


if __name__ == "__main__":
    main()
