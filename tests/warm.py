"""Processes of tests that want torch, vLLM or Megatron: forks of one process that has imported them.

Whatever this process starts with multiprocessing's method `forkserver` is one: ranks of trainers, tensor-parallel ranks
of vLLM, and Ray nodes, which the embedded cluster starts from such a process too. Nothing here may import Ray, which
reads its configuration when it is imported: each node has its own.
"""

import multiprocessing
import os
from collections.abc import Mapping
from multiprocessing import forkserver
from multiprocessing.connection import Connection
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
