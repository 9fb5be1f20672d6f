"""Runs the housekeeping: one queue of work, fed by the store's changes."""

import asyncio
import logging
from collections.abc import Callable

from longshore_devcluster.apiserver.housekeeping.collector import Collector
from longshore_devcluster.apiserver.housekeeping.namespaces import Namespaces
from longshore_devcluster.apiserver.housekeeping.roles import aggregate_roles
from longshore_devcluster.apiserver.objects import Objects
from longshore_devcluster.apiserver.resources import Registry
from longshore_devcluster.apiserver.store import Change

_LOG = logging.getLogger(__name__)


class Housekeeper:
    """Garbage collection, namespaces and aggregated roles, in one task."""

    def __init__(self, objects: Objects, registry: Registry) -> None:
        self._objects = objects
        self._collector = Collector(objects, registry)
        self._namespaces = Namespaces(objects, registry)
        self._woken = asyncio.Event()
        self._changes: list[Change] = []
        self._task: asyncio.Task[None] | None = None
        self._unlisten: Callable[[], None] = lambda: None

    def start(self, ca_pem: str) -> None:
        self._namespaces.ca_pem = ca_pem
        self._collector.start()
        self._unlisten = self._objects.store.listen("*", self._on_change)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="housekeeping")

    async def stop(self) -> None:
        self._unlisten()
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _on_change(self, change: Change) -> None:
        self._changes.append(change)
        self._woken.set()

    async def _run(self) -> None:
        self._work([])
        while True:
            await self._woken.wait()
            self._woken.clear()
            changes, self._changes = self._changes, []
            self._work(changes)

    def _work(self, changes: list[Change]) -> None:
        """Do one round of housekeeping. What it changes comes back as work of the next round."""
        for part in (self._namespaces.work, self._collector.work, self._roles):
            try:
                part(changes)
            except Exception:  # noqa: BLE001  (one broken object must not end the housekeeping)
                _LOG.exception("housekeeping")

    def _roles(self, changes: list[Change]) -> None:
        touched = any(change.key.resource.startswith("clusterroles.") for change in changes)
        if touched or not changes:
            aggregate_roles(self._objects)
