"""Namespaces: what a new one gets, and how a deleted one is emptied."""

from longshore_devcluster.apiserver.errors import ApiError
from longshore_devcluster.apiserver.objects import Objects
from longshore_devcluster.apiserver.request import DeleteOptions, WriteOptions
from longshore_devcluster.apiserver.resources import Registry, Resource
from longshore_devcluster.apiserver.schema.node import Object
from longshore_devcluster.apiserver.store import Change, Record, copied
from longshore_kube.times import rfc3339

_OPTIONS = WriteOptions("kube-controller-manager")
_CONDITIONS = (
    ("NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered"),
    ("NamespaceDeletionGroupVersionParsingFailure", "ParsedGroupVersions", "All legacy kube types successfully parsed"),
    ("NamespaceDeletionContentFailure", "ContentDeleted", "All content successfully deleted, may be waiting on "
     "finalization"),
)  # fmt: skip


class Namespaces:
    """Keeps ServiceAccount ``default`` and ConfigMap ``kube-root-ca.crt``; empties terminating namespaces."""

    def __init__(self, objects: Objects, registry: Registry) -> None:
        self._objects, self._registry = objects, registry
        self.ca_pem = ""

    def work(self, changes: list[Change]) -> None:
        """Look after every namespace that the changes touch (all of them when there are none)."""
        names = {c.key.namespace or c.key.name for c in changes if _concerns(c)}
        for record in self._objects.store.items("namespaces"):
            if changes and record.key.name not in names:
                continue
            if record.obj["metadata"].get("deletionTimestamp"):
                self._empty(record)
            else:
                self._furnish(record.key.name)

    def _furnish(self, namespace: str) -> None:
        furniture: list[tuple[str, Object]] = [
            ("serviceaccounts", {"kind": "ServiceAccount", "metadata": {"name": "default"}}),
            (
                "configmaps",
                {
                    "kind": "ConfigMap",
                    "metadata": {"name": "kube-root-ca.crt"},
                    "data": {"ca.crt": self.ca_pem},
                },
            ),
        ]
        for plural, obj in furniture:
            resource = self._registry.find("", "v1", plural)
            assert resource is not None
            if self._objects.store.get(resource.key(namespace, obj["metadata"]["name"])) is None:
                self._objects.create(resource, namespace, {"apiVersion": "v1", **obj}, _OPTIONS)

    def _empty(self, record: Record) -> None:
        """Delete what is inside; once nothing is left, give up the finalizer, and the namespace goes."""
        namespace = record.key.name
        remaining: list[tuple[Resource, Record]] = []
        for storage in list(self._objects.store.resources()):
            resource = self._registry.by_storage(storage)
            if resource is None or not resource.namespaced:
                continue
            for item in self._objects.store.items(storage, namespace):
                if not item.obj["metadata"].get("deletionTimestamp"):
                    self._delete(resource, item)
                if self._objects.store.get(item.key) is not None:
                    remaining.append((resource, item))
        if not (record.obj.get("spec") or {}).get("finalizers"):
            return
        obj = copied(record.obj)
        now = rfc3339(self._objects.now())
        obj["status"]["conditions"] = _conditions(remaining, obj["status"].get("conditions") or [], now)
        if not remaining:
            obj["spec"]["finalizers"] = []
        if obj == record.obj:
            return
        self._objects.store.put(record.key, obj)
        if not remaining and not obj["metadata"].get("finalizers"):
            self._objects.store.remove(record.key)

    def _delete(self, resource: Resource, item: Record) -> None:
        try:
            self._objects.delete(resource, item.key.namespace, item.key.name, DeleteOptions(propagation="Background"))
        except ApiError as error:
            if error.code != 404:
                raise


def _concerns(change: Change) -> bool:
    if change.key.resource == "namespaces":
        return True
    furniture = ("serviceaccounts", "configmaps")
    return change.type == "DELETED" or (change.key.resource not in furniture and change.type == "ADDED")


def _conditions(remaining: list[tuple[Resource, Record]], old: list[Object], now: str) -> list[Object]:
    counts: dict[str, int] = {}
    finalizers: dict[str, int] = {}
    for resource, record in remaining:
        counts[f"{resource.plural}.{resource.group}"] = counts.get(f"{resource.plural}.{resource.group}", 0) + 1
        for name in record.obj["metadata"].get("finalizers") or ():
            finalizers[name] = finalizers.get(name, 0) + 1
    content = ", ".join(f"{name} has {count} resource instances" for name, count in sorted(counts.items()))
    kept = ", ".join(f"{name} in {count} resource instances" for name, count in sorted(finalizers.items()))
    wanted = [(kind, "False", reason, message) for kind, reason, message in _CONDITIONS]
    wanted.append(
        ("NamespaceContentRemaining", "True", "SomeResourcesRemain", f"Some resources are remaining: {content}")
        if content
        else ("NamespaceContentRemaining", "False", "ContentRemoved", "All content successfully removed")
    )
    wanted.append(
        ("NamespaceFinalizersRemaining", "True", "SomeFinalizersRemain",
         f"Some content in the namespace has finalizers remaining: {kept}")
        if kept
        else ("NamespaceFinalizersRemaining", "False", "ContentHasNoFinalizers",
              "All content-preserving finalizers finished")
    )  # fmt: skip
    before = {c["type"]: c for c in old}
    return [
        {
            "type": kind,
            "status": status,
            "lastTransitionTime": before[kind]["lastTransitionTime"]
            if kind in before and before[kind]["status"] == status
            else now,
            "reason": reason,
            "message": message,
        }
        for kind, status, reason, message in wanted
    ]
