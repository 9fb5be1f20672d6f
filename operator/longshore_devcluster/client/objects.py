"""Words and small readers for Kubernetes objects held as plain JSON."""

from longshore_kube.resources import Json

Key = tuple[str, str]
"""(namespace, name); the namespace of a cluster-scoped object is the empty string."""


def key_of(obj: Json) -> Key:
    """The (namespace, name) of an object."""
    meta = obj["metadata"]
    return (meta.get("namespace", ""), meta["name"])


def uid_of(obj: Json) -> str:
    """The uid that the API server gave the object."""
    uid = obj["metadata"]["uid"]
    assert isinstance(uid, str)
    return uid


def is_deleting(obj: Json) -> bool:
    """Whether a deletion of the object has been requested."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def controller_of(obj: Json) -> Json | None:
    """The owner reference marked as controller, if there is one."""
    for owner in obj["metadata"].get("ownerReferences") or []:
        if owner.get("controller"):
            return dict(owner)
    return None


def controller_reference(owner: Json, api_version: str, kind: str) -> Json:
    """An owner reference that makes `owner` the controller of another object."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": owner["metadata"]["name"],
        "uid": uid_of(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def condition(obj: Json, kind: str) -> Json | None:
    """The status condition of type `kind`, if the object has one."""
    for entry in (obj.get("status") or {}).get("conditions") or []:
        if entry.get("type") == kind:
            return dict(entry)
    return None


def selector_matches(selector: Json | None, labels: dict[str, str] | None) -> bool:
    """Whether labels satisfy a metav1.LabelSelector. A missing selector matches nothing, an empty one everything."""
    if selector is None:
        return False
    have = labels or {}
    if any(have.get(name) != value for name, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(expression_matches(entry, have) for entry in selector.get("matchExpressions") or [])


def expression_matches(expression: Json, labels: dict[str, str]) -> bool:
    """Whether labels satisfy one requirement of a label or node selector.

    Errors: ValueError for an operator that Kubernetes does not know.
    """
    operator, value = expression["operator"], labels.get(expression["key"])
    values = expression.get("values") or []
    match operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return value is not None and _compare(operator, value, values)
    raise ValueError(f"unknown selector operator {operator!r}")


def _compare(operator: str, value: str, values: list[str]) -> bool:
    try:
        left, right = int(value), int(values[0])
    except (ValueError, IndexError):
        return False
    return left > right if operator == "Gt" else left < right
