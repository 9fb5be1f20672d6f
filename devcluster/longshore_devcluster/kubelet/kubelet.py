"""The kubelet of every node of the embedded cluster: gives each pod that is bound here its worker."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from longshore_devcluster.client.events import EventRecorder
from longshore_devcluster.client.informer import Informer
from longshore_devcluster.client.objects import key_of, uid_of
from longshore_devcluster.client.tasks import TaskGroup
from longshore_devcluster.kubelet.addresses import Addresses
from longshore_devcluster.kubelet.context import NodeServices, PodContext
from longshore_devcluster.kubelet.layout import PodLayout, remove_strangers
from longshore_devcluster.kubelet.leftovers import kill_marked
from longshore_devcluster.kubelet.memory import MemoryLimits
from longshore_devcluster.kubelet.nodes import NodeConfig, NodeRegistrar
from longshore_devcluster.kubelet.status import load_pod_record
from longshore_devcluster.kubelet.volumes import referenced_objects
from longshore_devcluster.kubelet.warm import WarmInterpreter
from longshore_devcluster.kubelet.worker import PodWorker
from longshore_kube.client import Client
from longshore_kube.resources import CLAIMS, CONFIG_MAPS, NODES, PODS, SECRETS, VOLUMES, Json, Resource

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KubeletConfig:
    """Nodes as (name, capacity), where files go, and what runs.

    `path_prefix` comes first in the PATH of every container; `restart_backoff_s` is the base of the restart delay;
    `stop_grace_s` is what running containers get when the kubelet itself stops. Modules to `preload` are imported once
    for all containers that run a module with this interpreter.
    """

    nodes: list[tuple[str, dict[str, str]]]
    run_dir: Path
    log_dir: Path
    path_prefix: str
    restart_backoff_s: float = 10.0
    stop_grace_s: float = 2.0
    preload: tuple[str, ...] = ()


class Kubelet:
    """Runs the pods of all configured nodes as processes of this machine."""

    def __init__(self, client: Client, config: KubeletConfig, now: Callable[[], float]) -> None:
        self._config = config
        self._addresses = Addresses()
        configs = [
            NodeConfig(name, self._addresses.node(index), capacity)
            for index, (name, capacity) in enumerate(config.nodes)
        ]
        self._node_addresses = {node.name: node.address for node in configs}
        self.registrar = NodeRegistrar(client, configs, now)
        self._pods = Informer(client, PODS)
        self._objects = _Objects(client)
        self._warm = WarmInterpreter(config.preload) if config.preload else None
        self._memory = MemoryLimits()
        self._services = NodeServices(
            client,
            now,
            EventRecorder(client, "kubelet", now, host=config.nodes[0][0]),
            self._objects,
            config.path_prefix,
            config.restart_backoff_s,
            self._memory,
            self._warm,
        )
        self._workers: dict[str, PodWorker] = {}
        self._tasks = TaskGroup()

    def worker(self, namespace: str, name: str) -> PodWorker | None:
        """Return the worker of a pod that is here."""
        pod = self._pods.get(namespace, name)
        return None if pod is None else self._workers.get(uid_of(pod))

    async def run(self) -> None:
        """Serve until cancelled, then end every container."""
        informers = [self._pods, *self._objects.informers]
        runs = (self.registrar.run(), self._memory.run(), *(informer.run() for informer in informers))
        try:
            async with TaskGroup(*runs):
                for informer in informers:
                    await informer.synced.wait()
                known = {uid_of(pod) for pod in self._pods}
                await asyncio.to_thread(remove_strangers, self._config.run_dir, self._config.log_dir, known)
                self._objects.on_change(self._inputs_changed)
                self._pods.listen(self._pod_changed)
                await asyncio.Event().wait()
        finally:
            await asyncio.shield(self._stop())

    async def _stop(self) -> None:
        workers = list(self._workers.values())
        for worker in workers:
            worker.abandon(self._config.stop_grace_s)
        await asyncio.gather(*(worker.finished.wait() for worker in workers))
        await self._tasks.cancel()
        if self._warm is not None:
            self._warm.close()
        self._addresses.close()

    def _pod_changed(self, old: Json | None, new: Json | None) -> None:
        if new is None:
            assert old is not None
            worker = self._workers.get(uid_of(old))
            if worker is not None:
                worker.forget()
        elif new["spec"].get("nodeName") in self._node_addresses:
            worker = self._workers.get(uid_of(new))
            if worker is None:
                self._adopt(new)
            else:
                worker.update(new)

    def _adopt(self, pod: Json) -> None:
        uid = uid_of(pod)
        layout = PodLayout(self._config.run_dir, self._config.log_dir, uid)
        pod_ip = self._address_of(pod)
        host_ip = self._node_addresses[pod["spec"]["nodeName"]]
        record = load_pod_record(pod, pod_ip, host_ip, self._services.now())
        worker = PodWorker(PodContext(self._services, pod, record, layout))
        self._workers[uid] = worker
        worker.update(pod)
        self._tasks.start(self._host(uid, worker), name=f"pod {'/'.join(key_of(pod))}")

    async def _host(self, uid: str, worker: PodWorker) -> None:
        if (worker.context.pod.get("status") or {}).get("startTime"):
            for pid in await asyncio.to_thread(kill_marked, uid):
                _log.info("ended process %d, which an earlier kubelet had left", pid)
        try:
            await worker.run()
        finally:
            worker.finished.set()
            self._addresses.release(uid)
            self._workers.pop(uid, None)

    def _address_of(self, pod: Json) -> str:
        if pod["spec"].get("hostNetwork"):
            return self._node_addresses[pod["spec"]["nodeName"]]
        return self._addresses.pod(uid_of(pod), (pod.get("status") or {}).get("podIP", ""))

    def _inputs_changed(self, kind: str, obj: Json) -> None:
        namespace, name = key_of(obj)
        for worker in self._workers.values():
            pod = worker.context.pod
            same_namespace = pod["metadata"]["namespace"] == namespace or not namespace
            if same_namespace and (kind == "volume" or (kind, name) in referenced_objects(pod)):
                worker.context.inputs_changed.notify()


class _Objects:
    """Finds what pods refer to in local copies."""

    def __init__(self, client: Client) -> None:
        def informer(resource: Resource) -> Informer:
            return Informer(client, resource)

        self._config_maps = informer(CONFIG_MAPS)
        self._secrets = informer(SECRETS)
        self._claims = informer(CLAIMS)
        self._volumes = informer(VOLUMES)
        self._nodes = informer(NODES)
        self.informers = [self._config_maps, self._secrets, self._claims, self._volumes, self._nodes]

    def on_change(self, tell: Callable[[str, Json], None]) -> None:
        """Call `tell` with (kind, object) for every change."""
        for kind, informer in (
            ("configmap", self._config_maps),
            ("secret", self._secrets),
            ("claim", self._claims),
            ("volume", self._volumes),
        ):
            informer.listen(lambda old, new, kind=kind: tell(kind, new or old))  # type: ignore[misc]

    def config_map(self, namespace: str, name: str) -> Json | None:
        """Return a ConfigMap, or None."""
        return self._config_maps.get(namespace, name)

    def secret(self, namespace: str, name: str) -> Json | None:
        """Return a Secret, or None."""
        return self._secrets.get(namespace, name)

    def node_allocatable(self, node: str) -> Json:
        """Return `status.allocatable` of a node."""
        found = self._nodes.get("", node) or {}
        return dict((found.get("status") or {}).get("allocatable") or {})

    def claim_volume(self, namespace: str, claim: str) -> Json | None:
        """Return the persistent volume that a claim is bound to, or None."""
        found = self._claims.get(namespace, claim) or {}
        if (found.get("status") or {}).get("phase") != "Bound":
            return None
        return self._volumes.get("", found["spec"]["volumeName"])
