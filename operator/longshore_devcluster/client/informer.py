"""A local copy of one collection, kept up to date by list and watch."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator

import aiohttp

from longshore_devcluster.client.objects import Json, Key, key_of
from longshore_devcluster.client.resources import Resource
from longshore_devcluster.client.rest import ApiError, Client

_log = logging.getLogger(__name__)
_RETRY_S = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0)

Listener = Callable[[Json | None, Json | None], None]
"""Called with (old, new): no old object means added, no new object means deleted."""


class Informer:
    """Mirrors a collection and tells listeners about changes.

    A relist after an expired watch is turned into the missed changes, so listeners never see a difference.
    """

    def __init__(
        self, client: Client, resource: Resource, *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> None:
        self.resource = resource
        self.synced = asyncio.Event()
        self._client = client
        self._namespace = namespace
        self._labels = labels
        self._fields = fields
        self._objects: dict[Key, Json] = {}
        self._listeners: list[Listener] = []

    def __iter__(self) -> Iterator[Json]:
        return iter(list(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, namespace: str, name: str) -> Json | None:
        """The object as last seen, or None."""
        return self._objects.get((namespace, name))

    def listen(self, listener: Listener) -> None:
        """Call `listener` for every object already known and for every later change."""
        self._listeners.append(listener)
        for obj in self:
            listener(None, obj)

    def observe(self, obj: Json) -> None:
        """Take in an answer to a write of one's own before the watch tells of it."""
        known = self._objects.get(key_of(obj))
        if known is None or _version(obj) > _version(known):
            self._store(obj)

    def assume(self, obj: Json) -> None:
        """Count a write as done before anything confirms it: the next event of the object overrides this."""
        self._objects[key_of(obj)] = obj

    async def run(self) -> None:
        """List and watch until cancelled; failures are retried."""
        failures = 0
        version = ""
        while True:
            try:
                if not version:
                    version = await self._relist()
                    self.synced.set()
                async for seen in self._follow(version):
                    version, failures = seen, 0
            except ApiError as error:
                if error.gone:
                    version = ""
                    continue
                _log.warning("watch of %s: %s", self.resource.plural, error)
            except (aiohttp.ClientError, TimeoutError) as error:
                _log.debug("watch of %s: %r", self.resource.plural, error)
            else:
                continue
            await asyncio.sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
            failures += 1

    async def _relist(self) -> str:
        items, version = await self._client.list_all(
            self.resource, self._namespace, labels=self._labels, fields=self._fields
        )
        listed = {key_of(item): item for item in items}
        # What is newer than the list was observed meanwhile, and is not missing from it.
        missing = [key for key in self._objects if key not in listed]
        for key in missing:
            if _version(self._objects[key]) <= int(version):
                self._remove(key)
        for item in items:
            self._store(item)
        return version

    async def _follow(self, version: str) -> AsyncIterator[str]:
        events = self._client.watch(self.resource, version, self._namespace, labels=self._labels, fields=self._fields)
        async for kind, obj in events:
            if kind == "DELETED":
                self._remove(key_of(obj), obj)
            elif kind != "BOOKMARK":
                self._store(obj)
            yield obj["metadata"]["resourceVersion"]

    def _store(self, obj: Json) -> None:
        old = self._objects.get(key_of(obj))
        if old is not None and _version(old) >= _version(obj):
            return
        if old is not None and old["metadata"].get("uid") != obj["metadata"].get("uid"):
            self._remove(key_of(obj))
            old = None
        self._objects[key_of(obj)] = obj
        self._notify(old, obj)

    def _remove(self, key: Key, last: Json | None = None) -> None:
        old = self._objects.pop(key, None)
        if old is not None:
            self._notify(last or old, None)

    def _notify(self, old: Json | None, new: Json | None) -> None:
        for listener in self._listeners:
            listener(old, new)


def _version(obj: Json) -> int:
    # Comparable since Kubernetes 1.35 by contract, and before in fact.
    return int(obj["metadata"].get("resourceVersion") or 0)
