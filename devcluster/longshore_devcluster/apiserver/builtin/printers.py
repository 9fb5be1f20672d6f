"""Printer columns of the built-in resources that people look at with ``kubectl get``; others show name and age."""

from collections.abc import Callable
from datetime import datetime

from longshore_devcluster.apiserver.clock import age
from longshore_devcluster.apiserver.resources import Column, Printer
from longshore_devcluster.apiserver.schema.node import Json, Object

NAME = Column("Name", format="name", description="The object's name, unique within its namespace.")
AGE = Column("Age", description="Time since the object was created.")
Cells = Callable[[Object, datetime], list[Json]]


def _wide(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, priority=1) for name in names)


def _age(obj: Object, now: datetime) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def _printer(names: str, cells: Cells, wide: tuple[str, ...] = ()) -> Printer:
    """Return a printer of columns ``Name <names> Age <wide>``; a trailing ``#`` makes a column an integer."""
    middle = tuple(
        Column(n.rstrip("#").replace("_", " "), "integer" if n.endswith("#") else "string") for n in names.split()
    )

    def row(obj: Object, now: datetime) -> list[Json]:
        produced = cells(obj, now)
        split = len(middle)
        return [obj["metadata"]["name"], *produced[:split], _age(obj, now), *produced[split:]]

    return Printer((NAME, *middle, AGE, *_wide(*wide)), row)


NAME_AND_AGE = _printer("", lambda obj, now: [])
CREATED_AT = Printer(
    (NAME, Column("Created At", "date")),
    lambda obj, now: [obj["metadata"]["name"], obj["metadata"].get("creationTimestamp")],
)


def _pod_row(pod: Object, now: datetime) -> list[Json]:
    spec, status = pod.get("spec", {}), pod.get("status", {})
    statuses = status.get("containerStatuses") or []
    ready = sum(1 for c in statuses if c.get("ready"))
    restarts = sum(c.get("restartCount", 0) for c in statuses)
    last = max((t for c in statuses if (t := _last_end(c))), default=None)
    shown_restarts = f"{restarts} ({age(last, now)} ago)" if restarts and last else str(restarts)
    return [
        f"{ready}/{len(spec.get('containers') or [])}",
        _pod_reason(pod),
        shown_restarts,
        status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
    ]


def _last_end(container_status: Object) -> str | None:
    ended: str | None = container_status.get("lastState", {}).get("terminated", {}).get("finishedAt")
    return ended


def _pod_reason(pod: Object) -> str:
    status = pod.get("status", {})
    reason = status.get("reason") or status.get("phase") or "Pending"
    if any(
        c.get("type") == "PodScheduled" and c.get("reason") == "SchedulingGated" for c in status.get("conditions") or ()
    ):
        reason = "SchedulingGated"
    initial = _init_reason(pod)
    reason = initial or _container_reason(status, reason)
    if pod["metadata"].get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return str(reason)


def _init_reason(pod: Object) -> str:
    containers = pod.get("spec", {}).get("initContainers") or []
    for index, container in enumerate(pod.get("status", {}).get("initContainerStatuses") or ()):
        state = container.get("state", {})
        terminated, waiting = state.get("terminated"), state.get("waiting")
        if terminated and terminated.get("exitCode", 0) == 0:
            continue
        if terminated:
            return "Init:" + (terminated.get("reason") or f"ExitCode:{terminated['exitCode']}")
        if waiting and waiting.get("reason") not in (None, "", "PodInitializing"):
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{len(containers)}"
    return ""


def _container_reason(status: Object, reason: str) -> str:
    running = False
    for container in reversed(status.get("containerStatuses") or []):
        state = container.get("state", {})
        terminated = state.get("terminated")
        if state.get("waiting", {}).get("reason"):
            reason = state["waiting"]["reason"]
        elif terminated:
            signal = terminated.get("signal")
            fallback = f"Signal:{signal}" if signal else f"ExitCode:{terminated.get('exitCode', 0)}"
            reason = terminated.get("reason") or fallback
        elif container.get("ready") and "running" in state:
            running = True
    if reason == "Completed" and running:
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
        return "Running" if ready else "NotReady"
    return reason


PODS = _printer("Ready Status Restarts", _pod_row, ("IP", "Node"))


def _node_row(node: Object, now: datetime) -> list[Json]:
    status = node.get("status", {})
    ready = next((c for c in status.get("conditions") or () if c["type"] == "Ready"), None)
    shown = "Unknown" if ready is None else "Ready" if ready["status"] == "True" else "NotReady"
    return [shown + ",SchedulingDisabled" * bool(node.get("spec", {}).get("unschedulable"))]


NODES = _printer("Status", _node_row)


def _deployment_row(obj: Object, now: datetime) -> list[Json]:
    status, spec = obj.get("status", {}), obj.get("spec", {})
    return [
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 1)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
    ]


DEPLOYMENTS = _printer("Ready Up-to-date# Available#", _deployment_row)


def _claim_row(obj: Object, now: datetime) -> list[Json]:
    deleting = obj["metadata"].get("deletionTimestamp")
    phase = "Terminating" if deleting else str(obj.get("status", {}).get("phase", ""))
    return [phase, obj.get("spec", {}).get("volumeName") or ""]


CLAIMS = _printer("Status Volume", _claim_row)
SECRETS = _printer("Type Data", lambda obj, now: [obj.get("type", ""), len(obj.get("data") or {})])


def _event_row(event: Object, now: datetime) -> list[Json]:
    about, series = event.get("involvedObject", {}), event.get("series") or {}
    first = event.get("firstTimestamp") or event.get("eventTime")
    return [
        age(series.get("lastObservedTime") or event.get("lastTimestamp") or first, now),
        event.get("type", ""),
        event.get("reason", ""),
        f"{about.get('kind', '').lower()}/{about.get('name', '')}",
        event.get("message", "").strip(),
    ]


EVENTS = Printer(tuple(map(Column, ("Last Seen", "Type", "Reason", "Object", "Message"))), _event_row)
