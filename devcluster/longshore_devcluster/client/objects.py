"""Words and small readers for Kubernetes objects held as plain JSON."""

from longshore_kube.resources import Json

Key = tuple[str, str]
"""(namespace, name); the namespace of a cluster-scoped object is the empty string."""


def key_of(obj: Json) -> Key:
    """Return the (namespace, name) of an object."""
    meta = obj["metadata"]
    return (meta.get("namespace", ""), meta["name"])


def uid_of(obj: Json) -> str:
    """Return the uid that the API server gave the object."""
    uid = obj["metadata"]["uid"]
    assert isinstance(uid, str)
    return uid


def is_deleting(obj: Json) -> bool:
    """Return whether a deletion of the object has been requested."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def controller_of(obj: Json) -> Json | None:
    """Return the owner reference marked as controller, if there is one."""
    for owner in obj["metadata"].get("ownerReferences") or []:
        if owner.get("controller"):
            return dict(owner)
    return None


def controller_reference(owner: Json, api_version: str, kind: str) -> Json:
    """Return an owner reference that makes `owner` the controller of another object."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": owner["metadata"]["name"],
        "uid": uid_of(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def condition(obj: Json, kind: str) -> Json | None:
    """Return the status condition of type `kind`, if the object has one."""
    for entry in (obj.get("status") or {}).get("conditions") or []:
        if entry.get("type") == kind:
            return dict(entry)
    return None
