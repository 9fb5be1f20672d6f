"""Words and small readers for Kubernetes objects held as plain JSON."""

from datetime import UTC, datetime
from typing import Any

Json = dict[str, Any]
"""One Kubernetes object (or a part of one) as the API server sends it."""

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


def rfc3339(time_s: float) -> str:
    """A Unix time in seconds as metav1.Time writes it (whole seconds, UTC)."""
    return datetime.fromtimestamp(int(time_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(time_s: float) -> str:
    """A Unix time in seconds as metav1.MicroTime writes it."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> float:
    """The Unix time in seconds of an RFC 3339 timestamp."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


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
