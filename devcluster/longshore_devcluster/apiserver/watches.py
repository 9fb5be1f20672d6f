"""Watches: the changes of a resource as one client sees them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from longshore_devcluster.apiserver.errors import expired, internal
from longshore_devcluster.apiserver.lists import Match, matcher
from longshore_devcluster.apiserver.request import ListOptions
from longshore_devcluster.apiserver.resources import Resource
from longshore_devcluster.apiserver.schema.node import Object
from longshore_devcluster.apiserver.store import Change, Record, Store, TooOld
from longshore_devcluster.apiserver.write_rules import presented

BOOKMARK_PERIOD_S = 60.0
_BOOKMARK_LEAD_S = 2.0


class Event(NamedTuple):
    type: str
    obj: Object


class Watch:
    """Follows one resource from a version on. Use as a context manager; iterate ``events``."""

    def __init__(self, store: Store, resource: Resource, namespace: str, options: ListOptions, name: str = "") -> None:
        self._store = store
        self._resource = resource
        self._namespace = namespace
        self._options = options
        self._matches: Match = matcher(resource, options, name)
        self._backlog: deque[Change] = deque()
        self._woken = asyncio.Event()
        self._initial: list[Event] = []
        self._stop: Callable[[], None] = lambda: None
        self._seen = store.version

    def start(self) -> None:
        """Take the starting point. Raises 410 (too old) and 500 (not a version), before anything is sent."""
        options = self._options
        text = options.resource_version
        if text and not text.isdigit():
            why = f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
            raise internal(f"resourceVersion: {why}")
        version = int(text or 0)
        if options.send_initial_events or version == 0:
            self._initial = self._snapshot()
            if options.send_initial_events and options.bookmarks:
                self._initial.append(self._bookmark({"k8s.io/initial-events-end": "true"}))
        else:
            try:
                self._backlog.extend(self._store.changes_since(self._resource.storage, version))
            except TooOld as error:
                raise expired(str(error)) from None
            self._seen = max(version, self._store.version)
        self._stop = self._store.listen(self._resource.storage, self._on_change)

    def _snapshot(self) -> list[Event]:
        records = self._store.items(self._resource.storage, self._namespace)
        return [Event("ADDED", presented(self._resource, r)) for r in records if self._matches(r.obj)]

    def _bookmark(self, annotations: Object | None = None) -> Event:
        metadata: Object = {"resourceVersion": str(self._seen)}
        if annotations:
            metadata["annotations"] = annotations
        resource = self._resource
        obj = {"kind": resource.kind, "apiVersion": resource.group_version, "metadata": metadata}
        return Event("BOOKMARK", obj)

    def _on_change(self, change: Change) -> None:
        self._backlog.append(change)
        self._woken.set()

    def stop(self) -> None:
        self._stop()

    async def events(self, timeout_s: float) -> AsyncIterator[list[Event]]:
        """Yield batches of events until the time is over."""
        if self._initial:
            yield self._initial
            self._initial = []
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        bookmark_s = loop.time() + min(BOOKMARK_PERIOD_S, max(timeout_s - _BOOKMARK_LEAD_S, 0.1))
        while True:
            batch = self._drain()
            if batch:
                yield batch
                continue
            now_s = loop.time()
            if now_s >= end_s:
                return
            if self._options.bookmarks and now_s >= bookmark_s:
                self._seen = self._store.version
                bookmark_s = now_s + BOOKMARK_PERIOD_S
                yield [self._bookmark()]
                continue
            wait_s = min(end_s, bookmark_s if self._options.bookmarks else end_s) - now_s
            try:
                await asyncio.wait_for(self._woken.wait(), wait_s)
            except TimeoutError:
                continue

    def _drain(self) -> list[Event]:
        self._woken.clear()
        batch = []
        while self._backlog:
            change = self._backlog.popleft()
            event = self._seen_by_client(change)
            if event is not None:
                batch.append(event)
        return batch

    def _seen_by_client(self, change: Change) -> Event | None:
        """Return an object that starts to match appears as ADDED, one that stops to match as DELETED."""
        self._seen = max(self._seen, change.version)
        if self._namespace and change.key.namespace != self._namespace:
            return None
        matched = change.before is not None and self._matches(change.before)
        matches = change.type != "DELETED" and self._matches(change.obj)
        if not matched and not matches:
            return None
        kind = "MODIFIED" if matched and matches else "ADDED" if matches else "DELETED"
        obj = change.obj
        if kind == "DELETED" and change.type != "DELETED" and change.before is not None:
            version = change.obj["metadata"]["resourceVersion"]
            obj = {**change.before, "metadata": {**change.before["metadata"], "resourceVersion": version}}
        return Event(kind, presented(self._resource, Record(change.key, obj, change.version)))
