"""Programs of tests, `python -m MODULE ARGUMENTS`, as forks of a process that has imported what they import."""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest import mock


class ForkServer:
    """The process; it starts with the first program, and ends with this one."""

    def __init__(self, *modules: str) -> None:
        self._server = forkserver.ForkServer()
        self._server.set_forkserver_preload([*modules, __name__, "tests.frozen"])

    def start(self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> BaseProcess:
        """Start a program, in a session of its own; what it writes is appended to the log."""
        process = multiprocessing.get_context("forkserver").Process(
            target=_run, args=(module, list(arguments), dict(environment), str(log))
        )
        # Which server multiprocessing asks is no argument of it, and others are in use (`tests.warm`).
        with mock.patch.object(forkserver, "connect_to_new_process", self._server.connect_to_new_process):
            process.start()
        return process


def _run(module: str, arguments: list[str], environment: dict[str, str], log: str) -> None:
    os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for target in (1, 2):
        os.dup2(file, target)
    os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
