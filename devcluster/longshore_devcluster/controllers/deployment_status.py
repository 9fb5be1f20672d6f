"""The status of a Deployment, from those of its ReplicaSets. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from longshore_devcluster.client.objects import condition
from longshore_devcluster.controllers.rollout import surge_and_unavailable
from longshore_kube.resources import Json
from longshore_kube.times import parse_time, rfc3339

_TIMED_OUT = "ProgressDeadlineExceeded"


@dataclass(frozen=True)
class DeploymentReport:
    """The status, and when it must be computed again for its deadline (Unix seconds)."""

    status: Json
    look_again_s: float | None


def deployment_report(deployment: Json, new: Json | None, owned: Sequence[Json], now_s: float) -> DeploymentReport:
    """Return counts and the conditions Available and Progressing."""
    wanted = deployment["spec"]["replicas"]
    total, available = _sum(owned, "replicas"), _sum(owned, "availableReplicas")
    counts = {
        "replicas": total,
        "updatedReplicas": _sum([new] if new else [], "replicas"),
        "readyReplicas": _sum(owned, "readyReplicas"),
        "availableReplicas": available,
        "unavailableReplicas": max(0, max(wanted, total) - available),
    }
    _, unavailable = surge_and_unavailable(deployment)
    progressing, look_again_s = _progressing(deployment, new, counts, now_s)
    conditions = [_available(deployment, available >= wanted - unavailable, now_s), progressing]
    known = (deployment.get("status") or {}).get("conditions") or []
    others = [entry for entry in known if entry["type"] not in ("Available", "Progressing")]
    status = {
        **counts,
        "observedGeneration": deployment["metadata"].get("generation", 0),
        "conditions": conditions + others,
    }
    return DeploymentReport(status, look_again_s)


def _available(deployment: Json, holds: bool, now_s: float) -> Json:
    if holds:
        reason, message = "MinimumReplicasAvailable", "Deployment has minimum availability."
    else:
        reason, message = "MinimumReplicasUnavailable", "Deployment does not have minimum availability."
    return _condition(deployment, "Available", holds, reason, message, now_s, moved=False)


def _progressing(deployment: Json, new: Json | None, counts: dict[str, int], now_s: float) -> tuple[Json, float | None]:
    wanted, known = deployment["spec"]["replicas"], condition(deployment, "Progressing")
    name = new["metadata"]["name"] if new else deployment["metadata"]["name"]
    before = deployment.get("status") or {}
    complete = (
        new is not None
        and counts["updatedReplicas"] == wanted == counts["replicas"]
        and counts["availableReplicas"] >= wanted
    )
    if complete:
        message = f'ReplicaSet "{name}" has successfully progressed.'
        moved = known is None or known.get("reason") != "NewReplicaSetAvailable"
        done = _condition(deployment, "Progressing", True, "NewReplicaSetAvailable", message, now_s, moved)
        return done, None
    moved = (
        known is None
        or any(
            counts[entry] != before.get(entry, 0) for entry in ("updatedReplicas", "readyReplicas", "availableReplicas")
        )
        or before.get("observedGeneration") != deployment["metadata"].get("generation", 0)
    )
    deadline_s = deployment["spec"].get("progressDeadlineSeconds", 600)
    since_s = now_s if moved or known is None else parse_time(known.get("lastUpdateTime", rfc3339(now_s))).timestamp()
    if (not moved and known is not None and known["reason"] == _TIMED_OUT) or now_s - since_s > deadline_s:
        message = f'ReplicaSet "{name}" has timed out progressing.'
        return _condition(deployment, "Progressing", False, _TIMED_OUT, message, now_s, moved=False), None
    reason = "NewReplicaSetCreated" if known is None else "ReplicaSetUpdated"
    if not moved and known is not None and known["reason"] == "NewReplicaSetCreated":
        reason = "NewReplicaSetCreated"
    message = f'ReplicaSet "{name}" is progressing.'
    return _condition(deployment, "Progressing", True, reason, message, now_s, moved), since_s + deadline_s + 1


def _condition(deployment: Json, kind: str, holds: bool, reason: str, message: str, now_s: float, moved: bool) -> Json:
    known, value = condition(deployment, kind), "True" if holds else "False"
    same = known is not None and known["status"] == value
    unchanged = known is not None and same and known.get("reason") == reason and not moved
    return {
        "type": kind,
        "status": value,
        "reason": reason,
        "message": message,
        "lastTransitionTime": known["lastTransitionTime"] if known and same else rfc3339(now_s),
        "lastUpdateTime": known.get("lastUpdateTime", rfc3339(now_s)) if known and unchanged else rfc3339(now_s),
    }


def _sum(entries: Sequence[Json], name: str) -> int:
    return sum(int((entry.get("status") or {}).get(name) or 0) for entry in entries)
