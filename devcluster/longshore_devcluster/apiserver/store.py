"""The store: every object, one global resourceVersion, and the log of changes that watches read.

SQLite (WAL) keeps it across restarts; reads are served from memory. One asyncio process owns it: every method is
synchronous, so a read followed by a write with no ``await`` between them is a transaction.
"""

import sqlite3
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import orjson

from longshore_devcluster.apiserver.schema.node import Object

EventType = Literal["ADDED", "MODIFIED", "DELETED"]


class Key(NamedTuple):
    """Where an object lives. ``resource`` is ``plural.group`` (``pods`` for core); ``namespace`` may be empty."""

    resource: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Record:
    """One stored object. ``obj`` must not be changed: copy it with :func:`copied`."""

    key: Key
    obj: Object
    version: int


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the log. ``before`` is None for ADDED; for DELETED ``obj`` is the last state."""

    version: int
    type: EventType
    key: Key
    obj: Object
    before: Object | None


class TooOld(Exception):
    """The log no longer reaches back to the asked version; ``oldest`` is the oldest that it does reach."""

    def __init__(self, asked: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {asked} ({oldest})")


def copied(obj: Object) -> Object:
    """Return a deep copy of a JSON object."""
    copy: Object = orjson.loads(orjson.dumps(obj))
    return copy


_TABLES = """
CREATE TABLE IF NOT EXISTS objects (
    resource TEXT, namespace TEXT, name TEXT, version INTEGER, body BLOB, PRIMARY KEY (resource, namespace, name));
CREATE TABLE IF NOT EXISTS log (
    version INTEGER PRIMARY KEY, type TEXT, resource TEXT, namespace TEXT, name TEXT, body BLOB, before BLOB);
CREATE TABLE IF NOT EXISTS marks (name TEXT PRIMARY KEY, value INTEGER);
"""


class Store:
    """Objects by key, and the recent past of each resource."""

    def __init__(self, path: Path | str, *, log_length: int = 5_000) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=NORMAL")
        self._database.executescript(_TABLES)
        self._log_length = log_length
        self._objects: dict[str, dict[tuple[str, str], Record]] = {}
        self._log: deque[Change] = deque()
        self._log_of: dict[str, list[Change]] = {}
        self._floors: dict[str, int] = {}
        self._listeners: dict[str, list[Callable[[Change], None]]] = {}
        self.version = 1
        self.compacted = 0
        self._load()

    def _load(self) -> None:
        for resource, namespace, name, version, body in self._database.execute(
            "SELECT resource, namespace, name, version, body FROM objects"
        ):
            key = Key(resource, namespace, name)
            self._objects.setdefault(resource, {})[namespace, name] = Record(key, orjson.loads(body), version)
        for version, kind, resource, namespace, name, body, before in self._database.execute(
            "SELECT version, type, resource, namespace, name, body, before FROM log ORDER BY version"
        ):
            previous = orjson.loads(before) if before is not None else None
            self._remember(Change(version, kind, Key(resource, namespace, name), orjson.loads(body), previous))
        for name, value in self._database.execute("SELECT name, value FROM marks"):
            if name == "version":
                self.version = value
            elif name == "compacted":
                self.compacted = value
            else:
                self._floors[name] = value

    def close(self) -> None:
        self._database.close()

    # --- reading

    def get(self, key: Key) -> Record | None:
        return self._objects.get(key.resource, {}).get((key.namespace, key.name))

    def items(self, resource: str, namespace: str = "") -> list[Record]:
        """Return the records in (namespace, name) order; all namespaces when ``namespace`` is empty."""
        records = self._objects.get(resource, {})
        return [records[at] for at in sorted(records) if not namespace or at[0] == namespace]

    def items_at(self, resource: str, namespace: str, version: int) -> list[Record]:
        """Return the list as it was at an earlier version. Raises TooOld."""
        records = {record.key: record for record in self.items(resource, namespace)}
        for change in reversed(self.changes_since(resource, version)):
            if namespace and change.key.namespace != namespace:
                continue
            if change.before is None:
                records.pop(change.key, None)
            else:
                version_before = int(change.before["metadata"]["resourceVersion"])
                records[change.key] = Record(change.key, change.before, version_before)
        return [records[key] for key in sorted(records)]

    def resources(self) -> Iterator[str]:
        yield from [name for name, records in self._objects.items() if records]

    def changes_since(self, resource: str, version: int) -> list[Change]:
        """Return the changes after ``version``, oldest first. Raises TooOld."""
        oldest = max(self.compacted, self._floors.get(resource, 0))
        if version < oldest:
            raise TooOld(version, oldest)
        log = self._log_of.get(resource, [])
        return log[bisect_right(log, version, key=lambda change: change.version) :]

    # --- writing

    def put(self, key: Key, obj: Object) -> Record:
        """Store ``obj`` (which the store then owns) under the next version, which it writes into the object."""
        previous = self.get(key)
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        record = Record(key, obj, self.version)
        self._objects.setdefault(key.resource, {})[key.namespace, key.name] = record
        kind: EventType = "MODIFIED" if previous else "ADDED"
        self._write(Change(self.version, kind, key, obj, previous.obj if previous else None))
        return record

    def show(self, record: Record, obj: Object) -> None:
        """Show readers ``obj`` in place of what the record holds; its version and its history stay."""
        self._objects[record.key.resource][record.key.namespace, record.key.name] = Record(
            record.key, obj, record.version
        )

    def remove(self, key: Key) -> Record:
        """Remove an existing object; the returned record carries the version of its removal."""
        previous = self._objects[key.resource].pop((key.namespace, key.name))
        self.version += 1
        obj = {**previous.obj, "metadata": {**previous.obj["metadata"], "resourceVersion": str(self.version)}}
        self._write(Change(self.version, "DELETED", key, obj, previous.obj))
        return Record(key, obj, self.version)

    def begin_history(self, resource: str) -> None:
        """Note that the resource exists from now on: watches cannot start before this version."""
        self._floors[resource] = self.version
        self._database.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", (resource, self.version))

    def _write(self, change: Change) -> None:
        key, body = change.key, orjson.dumps(change.obj)
        before = orjson.dumps(change.before) if change.before is not None else None
        database = self._database
        database.execute("BEGIN")
        if change.type == "DELETED":
            database.execute("DELETE FROM objects WHERE resource=? AND namespace=? AND name=?", key)
        else:
            database.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", (*key, change.version, body))
        database.execute(
            "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", (change.version, change.type, *key, body, before)
        )
        database.execute("INSERT OR REPLACE INTO marks VALUES ('version', ?)", (change.version,))
        database.execute("COMMIT")
        self._remember(change)
        self._compact()
        for listener in [*self._listeners.get(change.key.resource, ()), *self._listeners.get("*", ())]:
            listener(change)

    def _remember(self, change: Change) -> None:
        self._log.append(change)
        self._log_of.setdefault(change.key.resource, []).append(change)

    def _compact(self) -> None:
        """Forget the oldest tenth once the log is full, so that the cost is spread thin."""
        if len(self._log) < self._log_length:
            return
        for _ in range(self._log_length // 10):
            self.compacted = self._log.popleft().version
        for resource, log in self._log_of.items():
            kept_from = bisect_right(log, self.compacted, key=lambda change: change.version)
            self._log_of[resource] = log[kept_from:]
        self._database.execute("DELETE FROM log WHERE version <= ?", (self.compacted,))
        self._database.execute("INSERT OR REPLACE INTO marks VALUES ('compacted', ?)", (self.compacted,))

    # --- following

    def listen(self, resource: str, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Calls ``listener`` after each change of a resource (``*``: of any); returns the way to stop it."""
        self._listeners.setdefault(resource, []).append(listener)
        return lambda: self._listeners[resource].remove(listener)
