"""The processes that vLLM starts on the CPU, as forks of one process that has vLLM imported.

vLLM starts a new interpreter for each tensor-parallel rank, and for the engine of a server. Each would import vLLM and
torch once more: 13 s of CPU time. Here they are forks of multiprocessing's fork server, which runs no thread. With a
GPU they stay as vLLM starts them.
"""

import os
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any, Final

from vllm.v1.engine import utils as engine_processes
from vllm.v1.executor import multiproc_executor

_PRELOAD: Final = ("longshore_runtime.backends.vllm_engine", "vllm.v1.worker.cpu_worker")


def fork_processes(model_modules: list[str]) -> None:
    """Have engines that start later in this process fork; `model_modules` define the class of their model."""
    context = _ForkingContext()
    context.set_forkserver_preload([*_PRELOAD, *model_modules])
    for module in (engine_processes, multiproc_executor):
        module.get_mp_context = lambda: context


class _ForkingContext(ForkServerContext):
    """What vLLM starts processes with."""

    @staticmethod
    def Process(  # type: ignore[override] # noqa: N802
        *, target: Callable[..., None], kwargs: Mapping[str, Any], name: str, daemon: bool | None = None
    ) -> ForkServerProcess:
        return ForkServerProcess(target=_run, args=(_Entry(target), kwargs), name=name, daemon=daemon)


class _Entry:
    """What a process is to run, with the environment at the time when it starts: the fork server has an older one."""

    def __init__(self, target: Callable[..., None], environment: Mapping[str, str] | None = None) -> None:
        self.target = target
        self.environment = environment

    def __reduce__(self) -> tuple[Any, ...]:
        return _Entry, (self.target, dict(os.environ))


def _run(entry: _Entry, kwargs: Mapping[str, Any]) -> None:
    assert entry.environment is not None, "it was pickled"
    os.environ.clear()
    os.environ.update(entry.environment)
    fork_processes([])  # The engine of a server starts ranks; the fork server is the same.
    entry.target(**kwargs)
