"""A warm interpreter that forks a keeper for every run and a judge for every large value, and never sees either itself.

Started by `sandbox`; it gets requests with descriptors over descriptor 0. Programs and inputs travel in memory files
that only the fork reads, so nothing of one sample is in the memory that the next one is forked from. A value is judged
after the end of all processes of the program that returned it.
"""

import gc
import importlib
import json
import os
import signal
import socket
import sys
from typing import Any, Final, NoReturn

from longshore_runtime.sandbox import linux
from longshore_runtime.sandbox.cases import MAX_DETAIL, parse_case
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
"""Modules that programs import most, imported here so that a fork has them."""


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
            is_shared=options["is_shared"],
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
            request = json.loads(message)
            if "judged_entry" in request:
                _judge(request, descriptors)
            keep(_run_request(request, descriptors), ground)
        for descriptor in descriptors:
            os.close(descriptor)


def _run_request(request: dict[str, Any], descriptors: list[int]) -> RunRequest:
    control, *files = descriptors
    kind = request["is_function"], request["is_interpreter"]
    return RunRequest(request["wall_s"], *kind, socket.socket(fileno=control), *files)


def _judge(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Send why a value is wrong, or null; the kernel ends this process when its time is over."""
    try:
        linux.die_with_parent(signal.SIGKILL)
        linux.hide_process()
        signal.setitimer(signal.ITIMER_REAL, request["wall_s"])
        control, test, claim = descriptors
        case = parse_case({"entry": request["judged_entry"], "test": _content(test).decode()}, "the test case")
        difference = case.difference(b"", _content(claim))
        with socket.socket(fileno=control) as host:
            host.sendall(json.dumps(difference and difference[:MAX_DETAIL]).encode())
    finally:
        os._exit(0)


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
