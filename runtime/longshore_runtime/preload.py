"""Import what the pods of a job need, for a cluster that starts them as forks of one process that has imported it.

The embedded cluster does. Ray stays out: it reads its configuration, the token mode included, when it is imported, and
each pod has its own. Everything here is for the CPU: a process that has used a GPU cannot be forked.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Final

from longshore_runtime.backends.vllm_environment import vllm_environment
from longshore_runtime.cluster.worker_imports import WorkerImports
from longshore_runtime.process.large_imports import without_collections

ENVIRONMENT: Final = vllm_environment(accelerator=False, enforce_eager=True)
"""Environment in which the modules are imported.

Pods share the machine's cores, so each process computes in one thread.
"""
_FOR_ALL: Final = (
    "jsonschema",  # A third of what Ray imports.
    "longshore.api.status",
    "longshore.page.view",
    "longshore.sim.auto",
    "longshore_kube.blocking",
    "longshore_runtime.cluster.worker",
    "longshore_runtime.environments.pod_server",
    "longshore_runtime.rewards.transports.thread",
    "longshore_runtime.telemetry.metrics",
    "pydantic.v1",  # Each worker of Ray imports it.
    "torch",
    "transformers",
)
"""Modules that every process imports.

None of them may start a thread, as pyarrow does: pods would no longer be forks, but new processes that import.
"""
_FOR_THE_CPU: Final = (
    "longshore_runtime.backends.vllm_cpu",
    "longshore_runtime.backends.torch_trainer",
    "longshore_runtime.backends.tiny_model",
    "transformers.models.qwen3",
    "vllm.model_executor.models.qwen3",
)


def suits(imports: WorkerImports) -> bool:
    """Return whether this process has imported what the actors of a pod need."""
    return not imports.environment or imports.environment == ENVIRONMENT


@contextlib.contextmanager
def _without(name: str) -> Iterator[None]:
    """Let imports of a module fail, as if it were not installed."""
    assert name not in sys.modules, f"{name} has been imported already"
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


def _import_all() -> None:
    os.environ.update(ENVIRONMENT)
    with _without("ray"), without_collections():
        for module in _FOR_ALL:
            importlib.import_module(module)
        if sys.modules["torch"].version.cuda is None and sys.modules["torch"].version.hip is None:
            for module in _FOR_THE_CPU:
                importlib.import_module(module)


_import_all()
