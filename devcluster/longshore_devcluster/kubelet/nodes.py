"""The Node objects that stand for this machine, and their heartbeat."""

import asyncio
import logging
import platform
from collections.abc import Callable
from dataclasses import dataclass

from longshore_kube.client import Client, Patch
from longshore_kube.errors import ApiError, KubeError
from longshore_kube.resources import LEASES, NODES, Json
from longshore_kube.times import rfc3339, rfc3339_micro

LEASE_NAMESPACE = "kube-node-lease"
_RUNTIME = "devcluster://"
_LEASE_S = 40
_HEARTBEAT_S = 10.0
_RETRY_S = 0.5
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodeConfig:
    """One node: its name, its address and what it offers to pods, as quantities by resource name."""

    name: str
    address: str
    capacity: dict[str, str]


def node_object(config: NodeConfig) -> Json:
    """Return the Node as first registered."""
    labels = {
        "kubernetes.io/hostname": config.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": _architecture(),
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": _architecture(),
    }
    return {"metadata": {"name": config.name, "labels": labels}, "spec": {}}


def node_status(config: NodeConfig, version: str, now_s: float, since_s: float) -> Json:
    """Return the status of a healthy node."""
    stamp, since = rfc3339(now_s), rfc3339(since_s)
    return {
        "capacity": config.capacity,
        "allocatable": config.capacity,
        "addresses": [
            {"type": "InternalIP", "address": config.address},
            {"type": "Hostname", "address": config.name},
        ],
        "conditions": [
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": stamp,
                "lastTransitionTime": since,
            }
            for kind, status, reason, message in (
                ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
                ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
                ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
                ("Ready", "True", "KubeletReady", "pods run as local processes of this machine"),
            )
        ],
        "nodeInfo": {
            "architecture": _architecture(),
            "operatingSystem": "linux",
            "osImage": "longshore development cluster (processes of this machine)",
            "kernelVersion": platform.release(),
            "kubeletVersion": version,
            "kubeProxyVersion": "",
            "containerRuntimeVersion": _RUNTIME + "1.0",
            "machineID": "",
            "systemUUID": "",
            "bootID": "",
        },
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
    }


class NodeRegistrar:
    """Registers the nodes and keeps saying that they are alive."""

    def __init__(self, client: Client, configs: list[NodeConfig], now: Callable[[], float]) -> None:
        self._client = client
        self._configs = configs
        self._now = now
        self._since_s = now()
        self.registered = asyncio.Event()

    async def run(self) -> None:
        """Register, then renew every node's status and Lease until cancelled."""
        while True:
            try:
                if not self.registered.is_set():
                    await self._retire_others()
                version = (await self._client.request("GET", "/version")).get("gitVersion", "v0.0.0")
                for config in self._configs:
                    await self._beat(config, version)
                self.registered.set()
            except KubeError as error:
                _log.warning("node heartbeat: %s", error)
                await asyncio.sleep(_RETRY_S)
                continue
            await asyncio.sleep(_HEARTBEAT_S)

    async def _retire_others(self) -> None:
        """Remove nodes that an earlier, larger configuration registered: nobody runs their pods any more."""
        names = {config.name for config in self._configs}
        for node in await self._client.items(NODES.path()):
            runtime = ((node.get("status") or {}).get("nodeInfo") or {}).get("containerRuntimeVersion", "")
            if runtime.startswith(_RUNTIME) and node["metadata"]["name"] not in names:
                await self._client.delete(NODES, node["metadata"]["name"])

    async def _beat(self, config: NodeConfig, version: str) -> None:
        status = {"status": node_status(config, version, self._now(), self._since_s)}
        try:
            node = await self._patch_status(config, status)
        except ApiError as error:
            if not error.not_found:
                raise
            await self._client.create(NODES, node_object(config))
            node = await self._patch_status(config, status)
        await self._renew_lease(config, node)

    async def _patch_status(self, config: NodeConfig, status: Json) -> Json:
        return await self._client.patch(NODES, config.name, "", status, kind=Patch.STRATEGIC, subresource="status")

    async def _renew_lease(self, config: NodeConfig, node: Json) -> None:
        renewed = {"renewTime": rfc3339_micro(self._now())}
        try:
            await self._client.patch(LEASES, config.name, LEASE_NAMESPACE, {"spec": renewed})
        except ApiError as error:
            if not error.not_found:
                raise
            owner = {"apiVersion": "v1", "kind": "Node", "name": config.name, "uid": node["metadata"]["uid"]}
            lease = {
                "metadata": {"name": config.name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]},
                "spec": {"holderIdentity": config.name, "leaseDurationSeconds": _LEASE_S, **renewed},
            }
            await self._client.create(LEASES, lease, LEASE_NAMESPACE)


def _architecture() -> str:
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)
