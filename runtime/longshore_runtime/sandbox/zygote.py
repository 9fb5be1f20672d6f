"""A warm interpreter that forks a keeper for every run, and never sees a program itself.

Started by `sandbox`; it gets requests with descriptors over descriptor 0. Programs and inputs travel in memory files
that only the fork reads, so nothing of one sample is in the memory that the next one is forked from.
"""

import gc
import importlib
import json
import os
import signal
import socket
import sys
from typing import Any, Final

from longshore_runtime.sandbox.confinement import Confinement, Ground, lay_ground
from longshore_runtime.sandbox.keeper import RunRequest, keep
from longshore_runtime.sandbox.layers import Layer, LayerUnavailable, SandboxLimits

_MESSAGE_BYTES: Final = 1 << 16
_NUM_DESCRIPTORS: Final = 6
_PRELOADED: Final = """
abc array ast asyncio base64 bisect calendar cmath collections contextlib copy ctypes dataclasses datetime decimal
encodings.idna enum fractions functools gc hashlib heapq io itertools json linecache math mmap multiprocessing numbers
operator os pathlib pickle queue random re select shutil signal socket statistics string struct subprocess sys tempfile
textwrap threading time traceback types typing unicodedata uuid
"""
"""What programs import most, so that a fork finds it there."""


def main(path: list[str]) -> None:
    """Set up, then fork until the host hangs up. `path`: where programs find the standard library."""
    host = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    options = json.loads(host.recv(_MESSAGE_BYTES))
    sys.path[:] = [*path, *options["import_paths"]]
    for name in _PRELOADED.split():
        importlib.import_module(name)
    try:
        ground = _prepare(options)
    except (OSError, LayerUnavailable) as error:
        host.send(json.dumps({"broken": str(error)}).encode())
        return
    host.send(json.dumps({"ready": True}).encode())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Keepers need no reaping; they report to the host.
    gc.collect()
    gc.freeze()
    _serve(host, ground)


def _prepare(options: dict[str, Any]) -> Ground:
    return lay_ground(
        Confinement(
            layers=frozenset(Layer(name) for name in options["layers"]),
            limits=SandboxLimits(**options["limits"]),
            user=options["user"],
            import_paths=options["import_paths"],
        )
    )


def _serve(host: socket.socket, ground: Ground) -> None:
    while True:
        message, descriptors, _, _ = socket.recv_fds(host, _MESSAGE_BYTES, _NUM_DESCRIPTORS)
        if not message:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            host.close()
            keep(_request(message, descriptors), ground)
        for descriptor in descriptors:
            os.close(descriptor)


def _request(message: bytes, descriptors: list[int]) -> RunRequest:
    request = json.loads(message)
    control, *files = descriptors
    return RunRequest(request["wall_s"], request["is_function"], socket.socket(fileno=control), *files)
