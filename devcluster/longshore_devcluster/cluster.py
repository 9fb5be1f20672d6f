"""The embedded cluster as a whole: API server, scheduler, kubelet and controllers in one process.

It serves development and tests only: pods are plain processes of this machine, with the rights of the user who started
the cluster and without isolation from it or from each other. Everything listens on loopback addresses only.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from longshore_devcluster.apiserver import ApiServer
from longshore_devcluster.client.tasks import TaskGroup
from longshore_devcluster.controllers import ControllerManager
from longshore_devcluster.kubelet import (
    ContainerStreams,
    Kubelet,
    KubeletConfig,
    create_run_dir,
    remove_if_empty,
    remove_run_dir,
)
from longshore_devcluster.scheduler import Scheduler
from longshore_kube.access import from_kubeconfig
from longshore_kube.client import Client

_RUN_DIR_FILE = "run-dir"


@dataclass(frozen=True)
class ClusterConfig:
    """The shape of the cluster.

    Capacities are bookkeeping for the scheduler, not limits: `cpus_per_node` cores, `memory_per_node` a quantity,
    `gpus_per_node` of the resource `gpu_resource`. `path_prefix` comes first in the PATH of every container, so
    that `python` is the interpreter that runs the cluster. `restart_backoff_s` is the base of the restart delay.
    `preload` names modules, with commas between them, that are imported once for all containers (see `kubelet.warm`).
    """

    port: int = 0
    num_nodes: int = 1
    gpus_per_node: int = 4
    gpu_resource: str = "longshore.dev/pretend-gpu"
    cpus_per_node: int = 64
    memory_per_node: str = "256Gi"
    pods_per_node: int = 110
    node_prefix: str = "dev-"
    path_prefix: str = field(default_factory=lambda: str(Path(sys.executable).parent))
    restart_backoff_s: float = 10.0
    preload: str = ""

    def __post_init__(self) -> None:
        """Check the fields; raises ValueError naming the field and what it takes."""
        for name in ("num_nodes", "cpus_per_node", "pods_per_node"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give at least 1")
        if self.gpus_per_node < 0:
            raise ValueError(f"gpus_per_node is {self.gpus_per_node}: give 0 or more")
        if "/" not in self.gpu_resource:
            raise ValueError(f"gpu_resource is {self.gpu_resource!r}: give a name with a domain, like nvidia.com/gpu")
        if not 0 <= self.port < 65536:
            raise ValueError(f"port is {self.port}: give 0 (any free port) to 65535")
        if self.restart_backoff_s <= 0:
            raise ValueError(f"restart_backoff_s is {self.restart_backoff_s}: give more than 0")

    def nodes(self) -> list[tuple[str, dict[str, str]]]:
        """Return (name, capacity) of each node."""
        capacity = {
            "cpu": str(self.cpus_per_node),
            "memory": self.memory_per_node,
            "ephemeral-storage": "1Ti",
            "pods": str(self.pods_per_node),
        }
        if self.gpus_per_node:
            capacity[self.gpu_resource] = str(self.gpus_per_node)
        return [(f"{self.node_prefix}{index}", capacity) for index in range(self.num_nodes)]


class DevCluster:
    """An embedded cluster in this process. State is kept in `data_dir` and survives a restart."""

    def __init__(self, data_dir: Path, *, config: ClusterConfig | None = None) -> None:
        self.config = config or ClusterConfig()
        self.data_dir = data_dir.absolute()
        self._server = ApiServer(self.data_dir, host="127.0.0.1", port=self.config.port)
        self._tasks = TaskGroup()
        self._clients = AsyncExitStack()

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.data_dir / "kubeconfig"

    @property
    def url(self) -> str:
        """The URL of the API server."""
        return self._server.url

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start everything; returns when the API answers and every node is Ready.

        Raises:
            OSError: the port is taken.
        """
        prepare_data_dir(self.data_dir)
        await self._server.start()
        kubelet = Kubelet(await self._client("system:node", "kubelet"), self._kubelet_config(), time.time)
        self._server.set_pod_streams(ContainerStreams(kubelet, time.time))
        manager = await self._client("system:kube-controller-manager", "kube-controller-manager")
        controllers = ControllerManager(manager, self.data_dir / "volumes", time.time)
        scheduler = Scheduler(await self._client("system:kube-scheduler", "kube-scheduler"), time.time)
        self._tasks.start(kubelet.run(), "kubelet")
        self._tasks.start(controllers.run(), "controllers")
        self._tasks.start(scheduler.run(), "scheduler")
        await kubelet.registrar.registered.wait()

    async def stop(self) -> None:
        """End every pod's processes and then the components; the objects stay in the data directory."""
        await self._tasks.cancel()
        await self._clients.aclose()
        await self._server.stop()
        remove_if_empty(self._run_dir())

    def _run_dir(self) -> Path:
        return Path((self.data_dir / _RUN_DIR_FILE).read_text())

    async def _client(self, identity: str, user_agent: str) -> Client:
        access = replace(from_kubeconfig(self.kubeconfig), token=self._server.component_token(identity))
        return await self._clients.enter_async_context(Client(access, user_agent))

    def _kubelet_config(self) -> KubeletConfig:
        return KubeletConfig(
            nodes=self.config.nodes(),
            run_dir=self._run_dir(),
            log_dir=self.data_dir / "logs",
            path_prefix=self.config.path_prefix,
            restart_backoff_s=self.config.restart_backoff_s,
            preload=tuple(module for module in self.config.preload.split(",") if module),
        )


def prepare_data_dir(data_dir: Path) -> None:
    """Create the data directory and note the run directory, which keeps volumes across restarts."""
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    note = data_dir / _RUN_DIR_FILE
    run_dir = Path(note.read_text()) if note.exists() else None
    if run_dir is None or not run_dir.is_dir() or run_dir.stat().st_uid != os.getuid():
        run_dir = Path(tempfile.mkdtemp(prefix="ls", dir="/tmp"))
        note.write_text(str(run_dir))
    create_run_dir(run_dir)


def remove_run_dirs(data_dir: Path) -> None:
    """Remove what the cluster keeps outside its data directory. Errors: OSError."""
    note = data_dir / _RUN_DIR_FILE
    if note.exists():
        remove_run_dir(Path(note.read_text()))
        note.unlink()


async def run_cluster(data_dir: Path, config: ClusterConfig, on_ready: Callable[[DevCluster], None]) -> None:
    """Run a cluster until cancelled; `on_ready` is called once it serves."""
    async with DevCluster(data_dir, config=config) as cluster:
        on_ready(cluster)
        await asyncio.Event().wait()
