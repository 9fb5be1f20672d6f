"""Pods of a job as Ray nodes on this machine, started as real pods start them."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from longshore.api import contract
from longshore.api.names import Component
from longshore_runtime.backends.vllm_environment import vllm_environment
from longshore_runtime.cluster.node_starter import NodeStarter
from longshore_runtime.cluster.ray_driver import ray_driver
from longshore_runtime.cluster.ray_environment import RAY_ENVIRONMENT
from longshore_runtime.cluster.ray_node import RayNode, join, start_head
from longshore_runtime.cluster.worker_imports import WorkerImports
from longshore_runtime.settings import Settings
from tests.addresses import network
from tests.warm import WarmStarter

NO_IMPORTS = WorkerImports()
TRAINERS = WorkerImports(
    ("longshore_runtime.backends.torch_trainer", "longshore_runtime.backends.megatron.trainer"),
    {"OMP_NUM_THREADS": "1"},
)
ENGINES = WorkerImports(
    ("longshore_runtime.backends.vllm_cpu",), vllm_environment(accelerator=False, enforce_eager=True)
)
ENGINES_AND_TRAINERS = WorkerImports((*ENGINES.modules, *TRAINERS.modules), ENGINES.environment)
REPOSITORY = Path(__file__).parents[1]
_heads = itertools.count()


@contextlib.contextmanager
def worker_pods(
    storage: Path,
    count: int,
    imports: WorkerImports = NO_IMPORTS,
    head: Callable[[], NodeStarter] = lambda: WarmStarter(NO_IMPORTS),
) -> Iterator["Pods"]:
    """Ray with so many worker pods that mount this storage; this process is the coordinator. `head` starts its node."""
    third, fourth = divmod(next(_heads), 250)
    ip = f"{network()}.{third + 8}.{fourth + 1}"
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as nodes:
        for name, value in RAY_ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        patch.setenv(contract.ENV_STORAGE, str(storage))
        patch.setenv(contract.ENV_POD_IP, ip)
        pods = Pods(ip, storage, imports, nodes)
        starter = nodes.enter_context(head())
        nodes.enter_context(start_head(pods.settings(Component.COORDINATOR, 0), starter))
        # Disconnects before the nodes end: a thread that hears of a loss and asks Ray afterwards ends this process.
        with ray_driver(f"{ip}:{pods.port}", ip):
            for index in range(count):
                pods.join(index)
            yield pods


@dataclass
class Pods:
    """The worker pods that are there."""

    ip: str
    storage: Path
    imports: WorkerImports
    _exit: contextlib.ExitStack
    nodes: dict[int, RayNode] = field(default_factory=dict)

    @property
    def port(self) -> int:
        """Port of the Ray head."""
        return self.settings(Component.COORDINATOR, 0).ray_port

    def join(self, index: int) -> None:
        """A pod starts."""
        with WarmStarter(self.imports) as starter:
            self.nodes[index] = self._exit.enter_context(join(self.settings(Component.WORKER, index), starter))

    def leave(self, index: int) -> None:
        """A pod is gone, with all that ran in it."""
        self.nodes.pop(index).stop()

    def settings(self, component: Component, index: int) -> Settings:
        """What a pod finds in its environment."""
        return Settings(
            job="job",
            namespace="test",
            job_uid="1",
            attempt=1,
            component=component,
            index=index,
            pod_name=f"job-{component}-{index}",
            pod_ip=self.ip,
            coordinator_ip=self.ip,
            config=self.storage / "spec.json",
            storage=self.storage,
            termination_log=self.storage / "why",
        )
