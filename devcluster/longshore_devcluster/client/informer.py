"""A local copy of one collection, kept up to date by list and watch."""

import asyncio
from collections.abc import Callable, Iterator

from longshore_devcluster.client.objects import Key, key_of
from longshore_kube.client import Client
from longshore_kube.reflector import Listed, Reflector
from longshore_kube.resources import Json, Resource

Listener = Callable[[Json | None, Json | None], None]
"""Called with (old, new): no old object means added, no new object means deleted."""


class Informer:
    """Mirrors a collection and tells listeners about changes.

    A relist after an expired watch is turned into the missed changes, so listeners never see a difference.
    """

    def __init__(self, client: Client, resource: Resource) -> None:
        self.resource = resource
        self.synced = asyncio.Event()
        self._reflector = Reflector(client, resource.path(), dict)
        self._objects: dict[Key, Json] = {}
        self._listeners: list[Listener] = []

    def __iter__(self) -> Iterator[Json]:
        return iter(list(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, namespace: str, name: str) -> Json | None:
        """Return the object as last seen, or None."""
        return self._objects.get((namespace, name))

    def listen(self, listener: Listener) -> None:
        """Call `listener` for every object already known and for every later change."""
        self._listeners.append(listener)
        for obj in self:
            listener(None, obj)

    def observe(self, obj: Json) -> None:
        """Take in an answer to a write of one's own before the watch reports it."""
        known = self._objects.get(key_of(obj))
        if known is None or _version(obj) > _version(known):
            self._store(obj)

    def assume(self, obj: Json) -> None:
        """Count a write as done before anything confirms it: the next event of the object overrides this."""
        self._objects[key_of(obj)] = obj

    async def run(self) -> None:
        """List and watch until cancelled; failures are retried."""
        async for news in self._reflector.changes():
            if isinstance(news, Listed):
                self._relist(news.items, news.version)
                self.synced.set()
            elif news.kind == "DELETED":
                self._remove(key_of(news.item), news.item)
            else:
                self._store(news.item)

    def _relist(self, items: list[Json], version: int) -> None:
        listed = {key_of(item) for item in items}
        # What is newer than the list was observed meanwhile, and is not missing from it.
        for key in [key for key in self._objects if key not in listed]:
            if _version(self._objects[key]) <= version:
                self._remove(key)
        for item in items:
            self._store(item)

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
