"""Measure another operator that is built on kopf to compare with Longshore's: dask-kubernetes, with as many pods.

A DaskCluster has a scheduler and nine workers, each a Deployment of one pod. Nothing turns Deployments into pods on the
embedded API server, so `PretendDeployments` makes the pod of each, and the pretend kubelet says that it runs.
"""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks.measured_process import MeasuredProcess, free_port
from benchmarks.pretend_kubelet import PretendKubelet, background
from longshore_kube.client import Client
from longshore_kube.reflector import Changed, Listed, Reflector
from longshore_kube.resources import DEPLOYMENTS, PODS, Json, Resource

ROOT: Final = Path(__file__).parents[1]
PYTHON: Final = ROOT / ".venv/dask/bin/python"
SELECTOR: Final = "dask.org/cluster-name"
CLUSTERS: Final = Resource("kubernetes.dask.org", "v1", "daskclusters", "DaskCluster")
_DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
_KINDS: Final = ("DaskCluster", "DaskWorkerGroup", "DaskJob", "DaskAutoscaler")
_START_LIMIT_S: Final = 120.0


class DaskOperator(MeasuredProcess):
    """The operator of dask-kubernetes, started as its image starts it."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        self._url = f"http://127.0.0.1:{free_port()}/healthz"
        command = [str(PYTHON), "-m", "kopf", "run", "--standalone", "--all-namespaces", f"--liveness={self._url}"]
        super().__init__([*command, "-m", "dask_kubernetes.operator.controller"], kubeconfig, log)

    async def until_healthy(self) -> None:
        """Wait until the operator answers."""
        async with asyncio.timeout(_START_LIMIT_S), aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(self._url) as response:
                        response.raise_for_status()
                        return
                except aiohttp.ClientError:
                    await asyncio.sleep(0.2)


class PretendDeployments:
    """Makes the one pod of each Deployment."""

    def __init__(self, client: Client, num_workers: int) -> None:
        self._client = client
        self._num_workers = num_workers
        self._queue: asyncio.Queue[Json] = asyncio.Queue()

    async def run(self) -> None:
        """Make the pods of Deployments for ever."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._num_workers):
                group.create_task(self._work())
            async for news in Reflector(self._client, DEPLOYMENTS.path(None), lambda found: found).changes():
                for change in [Changed("ADDED", one) for one in news.items] if isinstance(news, Listed) else [news]:
                    if change.kind == "ADDED":
                        self._queue.put_nowait(change.item)

    async def _work(self) -> None:
        while True:
            deployment = await self._queue.get()
            metadata, template = deployment["metadata"], deployment["spec"]["template"]
            pod = {"metadata": {"name": f"{metadata['name']}-0", "labels": template["metadata"]["labels"]}}
            await self._client.create(PODS, pod | {"spec": template["spec"]}, metadata["namespace"])


def definition(kind: str) -> Json:
    """Return a definition that takes any object: those of the package are assembled when it is released."""
    plural = f"{kind.lower()}s"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    named = {"kind": kind, "plural": plural, "singular": kind.lower()}
    return {
        "metadata": {"name": f"{plural}.{CLUSTERS.group}"},
        "spec": {"group": CLUSTERS.group, "scope": "Namespaced", "names": named, "versions": [version]},
    }


def cluster(key: tuple[str, str], num_workers: int) -> Json:
    """Return a DaskCluster as its documentation shows it."""
    ports = [("tcp-comm", 8786), ("http-dashboard", 8787)]
    container = {"name": "scheduler", "image": "unused", "args": ["dask-scheduler"]}
    service = {
        "type": "ClusterIP",
        "selector": {SELECTOR: key[1], "dask.org/component": "scheduler"},
        "ports": [{"name": name, "protocol": "TCP", "port": port, "targetPort": name} for name, port in ports],
    }
    worker = {"name": "worker", "image": "unused", "args": ["dask-worker", "--name", "$(DASK_WORKER_NAME)"]}
    return {
        "metadata": {"namespace": key[0], "name": key[1]},
        "spec": {
            "worker": {"replicas": num_workers, "spec": {"containers": [worker]}},
            "scheduler": {"spec": {"containers": [container]}, "service": service},
        },
    }


async def define(client: Client) -> None:
    """Install the definitions, and wait until they are served."""
    for kind in _KINDS:
        await client.create(_DEFINITIONS, definition(kind))
    async with asyncio.timeout(_START_LIMIT_S):
        while not (await client.request("GET", f"/apis/{CLUSTERS.group}/v1")).get("resources"):  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.1)


async def measure_start(
    client: Client,
    kubeconfig: Path,
    log: Path,
    keys: list[tuple[str, str]],
    num_workers: int,
    parallel: int,
    limit_s: float,
) -> dict[str, Any]:
    """Measure from the creation of the first cluster until every pod of all of them runs.

    `pods_running_s` is None after `limit_s`.
    """
    await define(client)
    operator = DaskOperator(kubeconfig, log)
    kubelet, deployments = PretendKubelet(client, parallel, SELECTOR), PretendDeployments(client, parallel)
    slots = asyncio.Semaphore(parallel)

    async def create(key: tuple[str, str]) -> None:
        async with slots:
            await client.create(CLUSTERS, cluster(key, num_workers), key[0])

    try:
        async with background(kubelet.run(), deployments.run()):
            await operator.until_healthy()
            began_s, running_s = time.monotonic(), None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await asyncio.gather(*map(create, keys))
                    await kubelet.until_running(len(keys) * (num_workers + 1))
                    running_s = time.monotonic() - began_s
            return {
                "pods_running_s": running_s,
                "num_running": len(kubelet.running),
                "operator_cpu_s": operator.cpu_s(),
                "operator_peak_memory_mib": operator.peak_memory_mib(),
            }
    finally:
        operator.stop()
