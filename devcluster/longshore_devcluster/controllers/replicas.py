"""What a ReplicaSet does next, and its status. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from longshore_devcluster.client.objects import controller_reference
from longshore_devcluster.controllers.pods import available_from_s, is_active, is_ready
from longshore_kube.resources import Json


@dataclass(frozen=True)
class ReplicaPlan:
    """How many pods to create, which to delete, what to report, and when to look again (Unix seconds)."""

    num_create: int
    delete: list[Json]
    status: Json
    look_again_s: float | None


def plan_replicas(replica_set: Json, owned: Sequence[Json], now_s: float) -> ReplicaPlan:
    """Compare the pods that a ReplicaSet owns with those that it wants."""
    active = [pod for pod in owned if is_active(pod)]
    wanted = replica_set["spec"].get("replicas", 1)
    surplus = len(active) - wanted
    delete = sorted(active, key=_expendability)[:surplus] if surplus > 0 else []
    min_ready_s = replica_set["spec"].get("minReadySeconds") or 0
    available = [available_from_s(pod, min_ready_s) for pod in active]
    later = [time_s for time_s in available if time_s is not None and time_s > now_s]
    status = {
        "replicas": len(active),
        "fullyLabeledReplicas": len(active),
        "readyReplicas": sum(is_ready(pod) for pod in active),
        "availableReplicas": sum(time_s is not None and time_s <= now_s for time_s in available),
        "observedGeneration": replica_set["metadata"].get("generation", 0),
    }
    if replica_set["metadata"].get("deletionTimestamp"):
        return ReplicaPlan(0, [], status, None)
    return ReplicaPlan(max(0, -surplus), delete, status, min(later, default=None))


def pod_of(replica_set: Json) -> Json:
    """Return a new pod of a ReplicaSet."""
    template = replica_set["spec"]["template"]
    meta = template.get("metadata") or {}
    return {
        "metadata": {
            "generateName": replica_set["metadata"]["name"] + "-",
            "labels": meta.get("labels") or {},
            "annotations": meta.get("annotations") or {},
            "ownerReferences": [controller_reference(replica_set, "apps/v1", "ReplicaSet")],
        },
        "spec": template["spec"],
    }


def _expendability(pod: Json) -> tuple[bool, bool, bool, str]:
    # Deleted first: unbound, then not running, then not ready; of equals the youngest.
    phase = (pod.get("status") or {}).get("phase")
    age = pod["metadata"].get("creationTimestamp", "")
    return (bool(pod["spec"].get("nodeName")), phase == "Running", is_ready(pod), _reversed(age))


def _reversed(stamp: str) -> str:
    return "".join(chr(0x7F - ord(char)) for char in stamp)
