"""Processes of tests that want torch, vLLM or Megatron: forks of one process that has imported them.

Whatever this process starts with multiprocessing's method `forkserver` is one: ranks of trainers, tensor-parallel ranks
of vLLM, and Ray nodes, which the embedded cluster starts from such a process too. Nothing here may import Ray, which
reads its configuration when it is imported: each node has its own.
"""

import multiprocessing
import os
import runpy
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final

from longshore_runtime.cluster.node_starter import PRELOADED, NodeStarter, become_starter
from longshore_runtime.cluster.worker_imports import WorkerImports

# Not the server that multiprocessing has by itself: vLLM's ranks tell that one what to import.
_SERVER: Final = forkserver.ForkServer()
_SERVER.set_forkserver_preload([PRELOADED, "longshore_runtime.backends.megatron.trainer", __name__, "tests.frozen"])
forkserver.connect_to_new_process = _SERVER.connect_to_new_process


class WarmStarter(NodeStarter):
    """Starts a Ray node whose workers need nothing imported."""

    def __init__(self, imports: WorkerImports) -> None:
        self.imports = imports
        self.is_used = self._has_ended = False
        (theirs, self._lifeline), (self._output, their_output) = os.pipe(), os.pipe()
        files = Connection(theirs, writable=False), Connection(their_output, readable=False)
        self._process = multiprocessing.get_context("forkserver").Process(
            target=_become_starter, args=(*files, dict(os.environ))
        )
        self._process.start()
        for file in files:
            file.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def _wait(self) -> int:
        self._process.join()
        self._has_ended = True
        assert self._process.exitcode is not None
        return self._process.exitcode


def _become_starter(lifeline: Connection, output: Connection, environment: Mapping[str, str]) -> None:
    os.environ.clear()  # It is that of the server, which may have started while an engine did.
    os.environ.update(environment)
    become_starter(lifeline.fileno(), output.fileno())


class WarmProgram:
    """A module that runs as a program of its own; implements `Program` and, as a class, `RunModule`."""

    def __init__(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], output: Path | None = None
    ) -> None:
        self._process = multiprocessing.get_context("forkserver").Process(
            target=_run_module, args=(module, list(arguments), dict(environment), output)
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self._status = threading.Lock()
        """Two threads that read it from the server at once would each get a part."""

    def poll(self) -> int | None:
        """The exit status, once it has ended."""
        with self._status:
            return self._process.exitcode

    def wait(self) -> int:
        """The exit status."""
        wait([self._process.sentinel])
        status = self.poll()
        assert status is not None
        return status

    def terminate(self) -> None:
        """Ask it to end, if it has not."""
        with self._status:
            self._process.terminate()


def _run_module(module: str, arguments: list[str], environment: dict[str, str], output: Path | None) -> None:
    if output is not None:
        os.setsid()
        with output.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
