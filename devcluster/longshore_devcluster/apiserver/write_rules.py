"""The rules of writes as plain functions: what a write may change, what it counts as, and what deletion means."""

from longshore_devcluster.apiserver.errors import FieldError, field_forbidden
from longshore_devcluster.apiserver.request import DeleteOptions
from longshore_devcluster.apiserver.resources import Resource
from longshore_devcluster.apiserver.schema.node import Object
from longshore_devcluster.apiserver.store import Record, copied


def presented(resource: Resource, record: Record) -> Object:
    """Return a stored object in the form of ``resource``. Its members are the store's: copy them to change them."""
    obj = dict(record.obj)
    if resource.custom:
        obj["apiVersion"] = resource.group_version
    return obj


def normalize(resource: Resource, obj: Object) -> None:
    """Leave out empty fields and fill in defaults."""
    for field in ("labels", "annotations", "finalizers", "ownerReferences"):
        if field in obj["metadata"] and not obj["metadata"][field]:
            del obj["metadata"][field]
    if resource.custom:
        resource.custom.fill_defaults(obj)
    resource.fill_defaults(obj)


def restricted(resource: Resource, current: Object, new: Object, subresource: str) -> Object:
    """Return what a write through ``subresource`` may change: everything else is copied from ``current``."""
    if subresource == "status":
        kept = copied({name: value for name, value in current.items() if name != "status"})
        if not resource.custom:
            for field in ("annotations", "labels", "finalizers"):
                if resource.plural in ("nodes", "pods", "customresourcedefinitions") and field in new["metadata"]:
                    kept["metadata"][field] = new["metadata"][field]
        return {**kept, "status": new["status"]} if new.get("status") is not None else kept
    if resource.has_status and subresource == "":
        kept = {name: value for name, value in new.items() if name != "status"}
        return {**kept, "status": copied(current["status"])} if "status" in current else kept
    return new


def generation_moves(resource: Resource, old: Object, new: Object) -> bool:
    ignored = {"metadata", "apiVersion", "kind"}
    if resource.has_status:
        ignored.add("status")
    return {k: v for k, v in old.items() if k not in ignored} != {k: v for k, v in new.items() if k not in ignored}


def new_finalizer_errors(old: Object, new: Object) -> list[FieldError]:
    known = set(old["metadata"].get("finalizers") or ())
    added = [name for name in new["metadata"].get("finalizers") or () if name not in known]
    if not added:
        return []
    listed = ", ".join(f'"{name}"' for name in added)
    rule = f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{listed}}}"
    return [field_forbidden("metadata.finalizers", rule)]


def add_propagation(metadata: Object, options: DeleteOptions) -> None:
    finalizers = [f for f in metadata.get("finalizers") or () if f not in ("orphan", "foregroundDeletion")]
    if options.propagation == "Orphan":
        finalizers.append("orphan")
    elif options.propagation == "Foreground":
        finalizers.append("foregroundDeletion")
    elif not options.propagation:
        finalizers = list(metadata.get("finalizers") or ())
    if finalizers:
        metadata["finalizers"] = finalizers
    else:
        metadata.pop("finalizers", None)


def grace_period_s(resource: Resource, obj: Object, options: DeleteOptions) -> int:
    """Return the seconds that a pod may take to stop; other objects take none."""
    if resource.storage != "pods":
        return 0
    spec, status = obj["spec"], obj.get("status", {})
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    wanted = options.grace_period_s
    if wanted is None:
        wanted = spec.get("terminationGracePeriodSeconds", 30)
    return max(0, int(wanted))


def may_go(resource: Resource, obj: Object) -> bool:
    """Return whether a deleted object has nothing left that keeps it."""
    metadata = obj["metadata"]
    if not metadata.get("deletionTimestamp") or metadata.get("finalizers"):
        return False
    if resource.storage == "namespaces" and (obj.get("spec") or {}).get("finalizers"):
        return False
    return not metadata.get("deletionGracePeriodSeconds")
