"""Start a node's Ray workers by forking a process that has their imports done.

    process that starts the node ── fork ──► server ── fork ──► worker
                                 ── pipe: the raylet is there, `FIXED` ──► server
    raylet ── runs ──► `worker_launcher` ── socket: command, environment, open files ──► server
                                         ◄── the connection ends with the worker ────── worker

A worker that Ray starts imports Ray twice, then whatever its actor needs: seconds of CPU time for each actor of a pod,
most of it for vLLM and torch. Here one process per node imports all of it while images and weights still load, and
each worker is a fork of that process. It runs no thread and uses no GPU, so forks inherit neither.

The raylet runs `worker_launcher` in place of a worker: it sends the command, the environment and the open files of the
worker to the server, and lives as long as the worker does. Ray's library reads its configuration when it is imported,
so the server imports it once the raylet is there, with what is the same for all workers of a node (`FIXED`).

A worker that starts multiprocessing's fork server, as vLLM does for its tensor-parallel ranks, gets a fork for it too.
"""

import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import util
from pathlib import Path
from typing import Any, Final, NamedTuple

from longshore_runtime.cluster import worker_launcher
from longshore_runtime.cluster.deaths import ENV_FILE, DeathNotes
from longshore_runtime.process.large_imports import without_collections

FIXED: Final = ("RAY_JOB_ID", "RAY_RAYLET_PID")
"""Variables of a worker that Ray's library reads when it is imported."""
_OF_EVERY_WORKER: Final = ("ray", "pydantic.v1")
_NUMPY_THREADS: Final = "OPENBLAS_NUM_THREADS"
_MAX_FILES: Final = 16
_BACKLOG: Final = 128


class _Worker(NamedTuple):
    """Worker that a launcher asks for; the connection ends with the worker."""

    connection: socket.socket
    arguments: list[str]
    environment: dict[str, str]
    files: dict[int, int]
    """Numbers of files in this process, by the number that each is to have in the worker."""
    group: int
    niceness: int


class ForkServer:
    """The server, as the process that starts the node sees it."""

    def __init__(self, socket_path: Path, modules: Sequence[str]) -> None:
        """Fork the server, which imports `modules`; one that cannot be imported is left to the worker that wants it.

        Ray may not have been imported yet. The server ends when standard input does.
        """
        assert "ray" not in sys.modules, "Ray's library reads its configuration when it is imported"
        self.launcher = _launcher(socket_path)
        """Command that starts a worker, before the worker's own program and arguments."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(socket_path))
        listener.listen(_BACKLOG)
        raylet_is_there, self._raylet_is_there = os.pipe()
        if os.fork() == 0:
            os.close(self._raylet_is_there)
            _serve(listener, raylet_is_there, socket_path, modules)
        os.close(raylet_is_there)
        listener.close()

    def begin(self, environment: Mapping[str, str]) -> None:
        """Note that the raylet is there; `environment` has the variables that all its workers share."""
        with os.fdopen(self._raylet_is_there, "w") as pipe:
            json.dump(dict(environment), pipe)


def _launcher(socket_path: Path) -> list[str]:
    return [sys.executable, "-I", "-S", worker_launcher.__file__, str(socket_path)]


def _serve(listener: socket.socket, raylet_is_there: int, socket_path: Path, modules: Sequence[str]) -> None:
    """Run the server and, in its forks, the workers; does not return."""
    # Anyone who waits for the output of the parent must not wait for this process.
    with socket_path.with_suffix(".log").open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    signal.signal(signal.SIGCHLD, DeathNotes(os.environ.get(ENV_FILE)).reap)
    with os.fdopen(raylet_is_there) as pipe:
        text = pipe.read()
    if not text:
        os._exit(0)  # The node did not start.
    os.environ.update(json.loads(text))
    _import(modules)
    if not _can_be_forked():
        socket_path.unlink()  # Workers start as Ray starts them.
        os._exit(1)
    gc.freeze()  # A collection in a worker would copy every page that it shares with the others.
    worker = _next_worker(listener)
    if worker is None:
        os._exit(0)
    _fork_multiprocessing_too(socket_path)
    _run(worker)
    sys.exit()


def _import(modules: Sequence[str]) -> None:
    with without_collections():
        # The algebra of numpy starts a thread per processor as soon as it is imported. Nobody here computes with it:
        # torch has its own, which reads the same variable later.
        os.environ[_NUMPY_THREADS] = "1"
        with contextlib.suppress(ImportError):
            importlib.import_module("numpy")
        del os.environ[_NUMPY_THREADS]
        for module in (*_OF_EVERY_WORKER, *modules):
            with contextlib.suppress(ImportError):
                importlib.import_module(module)


def _can_be_forked() -> bool:
    """Return whether a fork of this process is as good as a new one.

    It could not use a GPU if this process has loaded the driver: CUDA loads it with its first call.
    """
    return has_one_thread() and "/libcuda.so" not in Path("/proc/self/maps").read_text()


def has_one_thread() -> bool:
    """Return whether no other thread runs, of Python or a library: a fork lacks them, and their locks stay locked."""
    return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208


def _next_worker(listener: socket.socket) -> _Worker | None:
    """Fork for each launcher; returns in the worker, and when standard input has ended (None)."""
    while True:
        ready, _, _ = select.select([listener.fileno(), 0], [], [])
        if listener.fileno() not in ready:
            return None
        try:
            worker = _receive(listener.accept()[0])
        except (OSError, ValueError):
            continue  # The launcher was killed before it had sent everything.
        if any(worker.environment.get(name) != os.environ.get(name) for name in FIXED):
            worker.connection.sendall(worker_launcher.REFUSAL)
        elif os.fork() == 0:
            listener.close()
            return worker
        worker.connection.close()
        for file in worker.files.values():
            os.close(file)


def _receive(connection: socket.socket) -> _Worker:
    header, files, _, _ = socket.recv_fds(connection, worker_launcher.LENGTH_BYTES, _MAX_FILES)
    with connection.makefile("rb") as stream:
        command = json.loads(stream.read(int.from_bytes(header, "big")))
    numbered = dict(zip(command.pop("files"), files, strict=True))
    return _Worker(connection, files=numbered, **command)


def _fork_multiprocessing_too(socket_path: Path) -> None:
    """Have the launcher start multiprocessing's fork server in this process, and in those that descend from it."""
    spawn = util.spawnv_passfds

    def launch(path: Any, arguments: Any, files: Sequence[int]) -> int:
        program = arguments[-1]
        if program.startswith("from multiprocessing.forkserver import main"):
            kept = worker_launcher.FILES + ",".join(map(str, files))
            arguments = [*_launcher(socket_path), kept, "-c", program]
        return spawn(path, arguments, files)

    util.spawnv_passfds = launch  # type: ignore[assignment]


def _run(worker: _Worker) -> None:
    """Do what the launcher would have done."""
    os.nice(worker.niceness - os.nice(0))
    os.setpgid(0, worker.group)  # A raylet ends what is left of a worker's process group.
    _renumber(worker)
    os.environ.clear()
    os.environ.update(worker.environment)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if worker.arguments[0] == "-c":
        sys.argv = ["-c"]
        exec(worker.arguments[1], {"__name__": "__main__"})
    else:
        sys.argv = worker.arguments
        runpy.run_path(sys.argv[0], run_name="__main__")


def _renumber(worker: _Worker) -> None:
    """Give each file its number; the connection, which ends with the worker, and files still to come keep clear."""
    first_free = max(worker.files) + 1
    fcntl.fcntl(worker.connection, fcntl.F_DUPFD, first_free)
    worker.connection.close()
    kept = {number: fcntl.fcntl(file, fcntl.F_DUPFD, first_free) for number, file in worker.files.items()}
    for file in worker.files.values():
        os.close(file)
    for number, file in kept.items():
        os.dup2(file, number)
        os.close(file)
