"""What controllers ask about pods."""

from longshore_devcluster.client.objects import condition, is_deleting
from longshore_kube.resources import Json
from longshore_kube.times import parse_time

FINAL_PHASES = ("Succeeded", "Failed")


def is_active(pod: Json) -> bool:
    """Return whether the pod has neither ended nor been asked to."""
    return (pod.get("status") or {}).get("phase") not in FINAL_PHASES and not is_deleting(pod)


def is_ready(pod: Json) -> bool:
    """Return whether the pod's Ready condition holds."""
    ready = condition(pod, "Ready")
    return ready is not None and ready["status"] == "True"


def available_from_s(pod: Json, min_ready_s: float) -> float | None:
    """Return the Unix time from which the pod counts as available; None while it is not ready."""
    ready = condition(pod, "Ready")
    if ready is None or ready["status"] != "True":
        return None
    return parse_time(ready["lastTransitionTime"]).timestamp() + min_ready_s if min_ready_s else 0.0
