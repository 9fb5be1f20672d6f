"""Runs the controllers: each makes a pass over its objects whenever something that matters to it has changed."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from longshore_devcluster.client.informer import Informer
from longshore_devcluster.client.tasks import TaskGroup, run_until_cancelled
from longshore_devcluster.controllers.orphans import OrphanController
from longshore_devcluster.controllers.storage import StorageController
from longshore_devcluster.controllers.workloads import DeploymentController, ReplicaSetController, alarm
from longshore_kube.client import Client
from longshore_kube.resources import (
    CLAIMS,
    DEPLOYMENTS,
    NODES,
    PODS,
    REPLICA_SETS,
    VOLUMES,
)


class ControllerManager:
    """All controllers behind one client. `volume_root` holds the directories of provisioned volumes."""

    def __init__(self, client: Client, volume_root: Path, now: Callable[[], float]) -> None:
        resources = (PODS, NODES, DEPLOYMENTS, REPLICA_SETS, CLAIMS, VOLUMES)
        self._informers = {resource.plural: Informer(client, resource) for resource in resources}
        self._client = client
        self._volume_root = volume_root
        self._now = now

    async def run(self) -> None:
        """Control until cancelled."""
        async with TaskGroup(*(informer.run() for informer in self._informers.values())) as group:
            for informer in self._informers.values():
                await informer.synced.wait()
            loops = self._loops()
            for name, (changed, work) in loops.items():
                group.start(run_until_cancelled(changed, work, name), name=name)
            await asyncio.Event().wait()

    def _loops(self) -> dict[str, tuple[asyncio.Event, Callable[[], Awaitable[None]]]]:
        client, now, of = self._client, self._now, self._informers
        rollout, replicas = self._trigger("deployments", "replicasets"), self._trigger("replicasets", "pods")
        deployments = DeploymentController(client, of["deployments"], of["replicasets"], now, alarm(rollout, now))
        replica_sets = ReplicaSetController(client, of["replicasets"], of["pods"], now, alarm(replicas, now))
        storage = StorageController(
            client, of["persistentvolumeclaims"], of["persistentvolumes"], of["pods"], self._volume_root, now
        )
        return {
            "deployment controller": (rollout, deployments.reconcile),
            "replica set controller": (replicas, replica_sets.reconcile),
            "storage controller": (
                self._trigger("persistentvolumeclaims", "persistentvolumes", "pods"),
                storage.reconcile,
            ),
            "orphan controller": (
                self._trigger("pods", "nodes"),
                OrphanController(client, of["pods"], of["nodes"]).reconcile,
            ),
        }

    def _trigger(self, *plurals: str) -> asyncio.Event:
        changed = asyncio.Event()
        for plural in plurals:
            self._informers[plural].listen(lambda old, new: changed.set())
        return changed
