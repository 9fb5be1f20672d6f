"""Garbage collection by owner references."""

from longshore_devcluster.apiserver.errors import ApiError
from longshore_devcluster.apiserver.objects import Objects
from longshore_devcluster.apiserver.request import DeleteOptions
from longshore_devcluster.apiserver.resources import Registry, Resource
from longshore_devcluster.apiserver.schema.node import Object
from longshore_devcluster.apiserver.store import Change, Key, Record, copied

_ORPHAN, _FOREGROUND = "orphan", "foregroundDeletion"


class Collector:
    """Deletes objects whose owners are gone; handles foreground deletion and orphaning.

    Keeps two indexes: which uids exist, and which objects name an owner's uid.
    """

    def __init__(self, objects: Objects, registry: Registry) -> None:
        self._objects, self._registry = objects, registry
        self._alive: dict[str, Key] = {}
        self._dependents: dict[str, set[Key]] = {}

    def start(self) -> None:
        store = self._objects.store
        for resource in store.resources():
            for record in store.items(resource):
                self._index(record.key, record.obj)

    def _index(self, key: Key, obj: Object) -> None:
        self._alive[obj["metadata"]["uid"]] = key
        for owner in obj["metadata"].get("ownerReferences") or ():
            self._dependents.setdefault(owner["uid"], set()).add(key)

    def _forget(self, change: Change) -> None:
        for obj in filter(None, (change.before, change.obj)):
            for owner in obj["metadata"].get("ownerReferences") or ():
                self._dependents.get(owner["uid"], set()).discard(change.key)
        if change.type == "DELETED":
            self._alive.pop(change.obj["metadata"]["uid"], None)

    def work(self, changes: list[Change]) -> None:
        """Bring the indexes up to date, then look at every object that the changes may have doomed."""
        if not changes:
            self._sweep_all()
            return
        suspects: set[Key] = set()
        for change in changes:
            self._forget(change)
            if change.type != "DELETED":
                self._index(change.key, change.obj)
                suspects.add(change.key)
            else:
                suspects |= self._dependents.pop(change.obj["metadata"]["uid"], set())
            for owner in change.obj["metadata"].get("ownerReferences") or ():
                if owner["uid"] in self._alive:
                    suspects.add(self._alive[owner["uid"]])
        for key in sorted(suspects):
            self._look_at(key)

    def _sweep_all(self) -> None:
        for key in sorted({key for keys in self._dependents.values() for key in keys}):
            self._look_at(key)

    def _look_at(self, key: Key) -> None:
        record = self._objects.store.get(key)
        resource = self._registry.by_storage(key.resource)
        if record is None or resource is None:
            return
        metadata = record.obj["metadata"]
        if metadata.get("deletionTimestamp"):
            finalizers = metadata.get("finalizers") or []
            if _ORPHAN in finalizers:
                self._orphan(resource, record)
            elif _FOREGROUND in finalizers:
                self._delete_dependents(resource, record)
            return
        owners = metadata.get("ownerReferences") or []
        if owners and not any(self._owner_lives(owner, record) for owner in owners):
            self._delete(resource, key, "Background")

    def _owner_lives(self, owner: Object, dependent: Record) -> bool:
        """Return whether the owner exists and (unless it blocks on this object) is not waiting for its dependents."""
        key = self._alive.get(owner["uid"])
        record = self._objects.store.get(key) if key else None
        if record is None or record.obj["metadata"]["uid"] != owner["uid"]:
            return False
        if key is not None and key.namespace not in ("", dependent.key.namespace):
            return False
        return not _waits(record.obj)

    def _orphan(self, resource: Resource, record: Record) -> None:
        uid = record.obj["metadata"]["uid"]
        for key in sorted(self._dependents.get(uid, set())):
            dependent = self._objects.store.get(key)
            if dependent is None:
                continue
            obj = copied(dependent.obj)
            kept = [o for o in obj["metadata"].get("ownerReferences") or () if o["uid"] != uid]
            obj["metadata"]["ownerReferences"] = kept
            if not kept:
                del obj["metadata"]["ownerReferences"]
            self._objects.store.put(key, obj)
        self._give_up(resource, record, _ORPHAN)

    def _delete_dependents(self, resource: Resource, record: Record) -> None:
        uid = record.obj["metadata"]["uid"]
        blocking = False
        for key in sorted(self._dependents.get(uid, set())):
            dependent = self._objects.store.get(key)
            dependent_resource = self._registry.by_storage(key.resource)
            if dependent is None or dependent_resource is None:
                continue
            owners = dependent.obj["metadata"].get("ownerReferences") or ()
            if not dependent.obj["metadata"].get("deletionTimestamp"):
                self._delete(dependent_resource, key, "Foreground" if key in self._owning() else "Background")
            if self._objects.store.get(key) is not None:
                blocking = blocking or any(o["uid"] == uid and o.get("blockOwnerDeletion") for o in owners)
        if not blocking:
            self._give_up(resource, record, _FOREGROUND)

    def _owning(self) -> set[Key]:
        return {self._alive[uid] for uid, keys in self._dependents.items() if keys and uid in self._alive}

    def _give_up(self, resource: Resource, record: Record, finalizer: str) -> None:
        current = self._objects.store.get(record.key)
        if current is None:
            return
        obj = copied(current.obj)
        kept = [name for name in obj["metadata"].get("finalizers") or () if name != finalizer]
        obj["metadata"]["finalizers"] = kept
        if not kept:
            del obj["metadata"]["finalizers"]
        self._objects.store.put(record.key, obj)
        if not kept:
            self._delete(resource, record.key, "")

    def _delete(self, resource: Resource, key: Key, propagation: str) -> None:
        options = DeleteOptions(propagation=propagation)  # type: ignore[arg-type]
        try:
            self._objects.delete(resource, key.namespace, key.name, options)
        except ApiError as error:
            if error.code != 404:
                raise


def _waits(owner: Object) -> bool:
    metadata = owner["metadata"]
    return bool(metadata.get("deletionTimestamp")) and _FOREGROUND in (metadata.get("finalizers") or ())
