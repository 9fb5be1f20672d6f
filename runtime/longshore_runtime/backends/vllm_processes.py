"""Start the processes of vLLM on the CPU as forks of one process that has imported vLLM.

vLLM starts a new interpreter for each tensor-parallel rank, and for the engine of a server. Each would import vLLM and
torch once more: 13 s of CPU time. Here they are forks of multiprocessing's fork server, which runs no thread.

A rank that waits for the next step looks at shared memory without a pause for a second, which keeps a core busy. Here
it sleeps between two looks, and its process groups share a device (`gloo_device`): ranks, trainers and rewards share
the cores. With a GPU everything stays as in vLLM.
"""

import itertools
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver, util
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any, Final

from vllm.distributed.device_communicators import shm_broadcast
from vllm.v1.engine import utils as engine_processes
from vllm.v1.executor import multiproc_executor

from longshore_runtime.backends.gloo_device import share_device

_PRELOAD: Final = "longshore_runtime.backends.vllm_cpu"
_PAUSE_S: Final = 0.0002
"""Seconds between two looks at shared memory: short against a step, and many times what a look takes."""


def adapt_processes(model_modules: list[str]) -> None:
    """Adapt the processes of engines that start later in this process.

    Engines fork their ranks, ranks sleep while they wait, and process groups share a device.

    Args:
        model_modules: modules that define the class of their model.
    """
    share_device()
    shm_broadcast.sched_yield = lambda: time.sleep(_PAUSE_S)
    context = _ForkingContext()
    context.set_forkserver_preload([_PRELOAD, *model_modules])
    for module in (engine_processes, multiproc_executor):
        module.get_mp_context = lambda: context


def start_fork_server() -> None:
    """Start the fork server now as a fork of this process, so that it has the same imports.

    A process with threads cannot be forked. There the server starts as a new process, once it is needed.
    """
    if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208
        return
    spawn = util.spawnv_passfds

    def fork(path: Any, arguments: Any, files: Sequence[int]) -> int:
        if not arguments[-1].startswith("from multiprocessing.forkserver import main"):
            return int(spawn(path, arguments, files))
        util.spawnv_passfds = spawn  # Here and in the fork.
        return _fork(arguments[-1], files)

    util.spawnv_passfds = fork  # type: ignore[assignment]
    try:
        forkserver.ensure_running()
    finally:
        util.spawnv_passfds = spawn


def _fork(program: str, files: Sequence[int]) -> int:
    """Run `python -c PROGRAM` with these files open in a fork of this process; returns its number."""
    if pid := os.fork():
        return pid
    try:
        server: Any = forkserver._forkserver
        server._lock = threading.RLock()  # The lock is held until the server runs.
        for before, after in itertools.pairwise([2, *sorted(files), os.sysconf("SC_OPEN_MAX")]):
            os.closerange(before + 1, after)
        exec(program, {"__name__": "__main__"})
    except SystemExit:
        os._exit(0)
    except BaseException:  # noqa: BLE001 - this process is a copy of another, and must not go on as one
        traceback.print_exc()
    os._exit(1)


class _ForkingContext(ForkServerContext):
    """Replacement for the multiprocessing context with which vLLM starts processes."""

    @staticmethod
    def Process(  # type: ignore[override] # noqa: N802
        *, target: Callable[..., None], kwargs: Mapping[str, Any], name: str, daemon: bool | None = None
    ) -> ForkServerProcess:
        return ForkServerProcess(target=_run, args=(_Entry(target), kwargs), name=name, daemon=daemon)


class _Entry:
    """Function that a process runs, with the current environment; that of the fork server is older."""

    def __init__(self, target: Callable[..., None], environment: Mapping[str, str] | None = None) -> None:
        self.target = target
        self.environment = environment

    def __reduce__(self) -> tuple[Any, ...]:
        return _Entry, (self.target, dict(os.environ))


def _run(entry: _Entry, kwargs: Mapping[str, Any]) -> None:
    assert entry.environment is not None, "it was pickled"
    os.environ.clear()
    os.environ.update(entry.environment)
    adapt_processes([])  # The engine of a server starts ranks.
    # The fork server that has started this process is at hand. Python would start another one.
    server: Any = forkserver._forkserver
    server.ensure_running = lambda: None
    entry.target(**kwargs)
