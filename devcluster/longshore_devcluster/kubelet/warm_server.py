"""Forks containers from an interpreter that has modules imported; see `warm`.

Run as a program (`python -m longshore_devcluster.kubelet.warm_server MODULE...`) whose standard input is a socket. Each
message on it carries the socket of one container: a fork becomes its keeper (`shim`), whose own fork becomes the main
process. The server ends when its standard input does.
"""

import atexit
import contextlib
import gc
import importlib
import io
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import setproctitle

from longshore_devcluster.kubelet import shim

_CHUNK_BYTES: Final = 65536


class _Entered(BaseException):
    """Unwinds the keeper's code in the process that has just become a container's main process."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        super().__init__()
        self.argv = argv
        self.env = env


def main(modules: list[str]) -> NoReturn:
    """Import, then serve."""
    control = socket.socket(fileno=os.dup(0))
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception:  # noqa: BLE001 - containers that need the module will say what is wrong
            traceback.print_exc()
    num_threads = len(list(Path("/proc/self/task").iterdir()))
    execute = _enter
    if num_threads > 1:
        # What other threads hold at a fork stays locked in it.
        sys.stderr.write(f"imports started {num_threads - 1} threads: containers start as new processes\n")
        execute = shim.execute
    gc.collect()
    gc.freeze()  # A collection in a container would copy every page that it shares with the others.
    signal.signal(signal.SIGCHLD, _reap)
    sys.stdout.flush()
    sys.stderr.flush()
    while True:
        _, files, _, _ = socket.recv_fds(control, 1, 1)
        if not files:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            _keep(files[0], execute)
        os.close(files[0])


def _reap(number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _keep(channel: int, execute: "shim.Execute") -> NoReturn:
    """Be the keeper of a container, and in its fork the main process."""
    try:
        for target in (0, 1):
            os.dup2(channel, target)
        os.close(channel)
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        shim.main(execute)
    except _Entered as entered:
        # Of the keeper nothing may live on: its files are closed, and their numbers belong to others soon.
        argv, env = entered.argv, entered.env
    except SystemExit:
        os._exit(1)
    except BaseException:  # noqa: BLE001 - this process is a copy of the server, and must not go on as one
        traceback.print_exc()
        os._exit(1)
    else:
        _take_leave()
        os._exit(0)
    _run(argv, env)


def _take_leave() -> None:
    """Wait until the kubelet hangs up, too: a socket that is closed with a command unread may lose the last events."""
    channel = socket.socket(fileno=0)
    with contextlib.suppress(OSError):  # It has gone.
        channel.shutdown(socket.SHUT_WR)
        while channel.recv(_CHUNK_BYTES):
            pass


def _enter(spec: dict[str, object]) -> NoReturn:
    argv, env = spec["argv"], spec["env"]
    assert isinstance(argv, list) and isinstance(env, dict)
    raise _Entered(argv, env)


def _run(argv: list[str], env: dict[str, str]) -> NoReturn:
    """Run `python -m MODULE ARGUMENTS` in this process, as the interpreter would."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    setproctitle.setproctitle(f"{' '.join(argv)} [{env.get('HOSTNAME', '')}]")
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # Tells the keeper that the program starts, as exec would.
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # TMPDIR is the container's own.
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:1] = [str(Path.cwd()), *paths]
    _python, _dash_m, module, *arguments = argv
    sys.argv = [module, *arguments]
    importlib.invalidate_caches()
    status = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    _end(status)


def _end(status: int) -> NoReturn:
    """End as the interpreter would, but free nothing: that would copy every page that is shared with other containers.

    It takes 0.2 s of CPU time where torch and vLLM have been imported.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # Waits for threads, as `multiprocessing` does in its forks.
    atexit._run_exitfuncs()
    for file in gc.get_objects():  # Without what was imported before the fork, which is frozen.
        if type(file) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
            with contextlib.suppress(OSError, ValueError):  # Closed, or nobody reads any more.
                file.flush()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
