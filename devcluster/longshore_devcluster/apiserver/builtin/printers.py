"""Printer columns of the built-in resources, as ``kubectl get`` shows them."""

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
    """Columns ``Name <names> Age <wide>``; a trailing ``#`` makes a column an integer."""
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
    gates = spec.get("readinessGates") or []
    return [
        f"{ready}/{len(spec.get('containers') or [])}",
        _pod_reason(pod),
        shown_restarts,
        status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        f"{_met(gates, status)}/{len(gates)}" if gates else "<none>",
    ]


def _last_end(container_status: Object) -> str | None:
    ended: str | None = container_status.get("lastState", {}).get("terminated", {}).get("finishedAt")
    return ended


def _met(gates: list[Object], status: Object) -> int:
    true = {c["type"] for c in status.get("conditions") or () if c.get("status") == "True"}
    return sum(1 for gate in gates if gate["conditionType"] in true)


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


PODS = _printer("Ready Status Restarts", _pod_row, ("IP", "Node", "Nominated Node", "Readiness Gates"))


def _node_row(node: Object, now: datetime) -> list[Json]:
    status = node.get("status", {})
    ready = next((c for c in status.get("conditions") or () if c["type"] == "Ready"), None)
    states = ["Unknown" if ready is None else "Ready" if ready["status"] == "True" else "NotReady"]
    if node.get("spec", {}).get("unschedulable"):
        states.append("SchedulingDisabled")
    prefix = "node-role.kubernetes.io/"
    labels = node["metadata"].get("labels") or {}
    roles = sorted(k.removeprefix(prefix) for k in labels if k.startswith(prefix))
    info = status.get("nodeInfo", {})
    addresses = {a["type"]: a["address"] for a in reversed(status.get("addresses") or [])}
    return [
        ",".join(states),
        ",".join(roles) or "<none>",
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", "<none>"),
        addresses.get("ExternalIP", "<none>"),
        info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


_NODE_COLUMNS = tuple(Column(n) for n in ("Status", "Roles", "Age", "Version"))
_NODE_WIDE = _wide("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime")


def _node_cells(node: Object, now: datetime) -> list[Json]:
    status, roles, *rest = _node_row(node, now)
    return [node["metadata"]["name"], status, roles, _age(node, now), *rest]


NODES = Printer((NAME, *_NODE_COLUMNS, *_NODE_WIDE), _node_cells)


def _template(obj: Object) -> tuple[str, str]:
    containers = obj.get("spec", {}).get("template", {}).get("spec", {}).get("containers") or []
    return ",".join(c["name"] for c in containers), ",".join(c.get("image", "") for c in containers)


def selector_text(selector: Object | None) -> str:
    """Return a label selector as one line."""
    if not selector:
        return "<none>"
    terms = [f"{k}={v}" for k, v in sorted((selector.get("matchLabels") or {}).items())]
    for e in selector.get("matchExpressions") or ():
        values = ",".join(e.get("values") or ())
        shown = {
            "In": f"{e['key']} in ({values})",
            "NotIn": f"{e['key']} notin ({values})",
            "Exists": e["key"],
            "DoesNotExist": f"!{e['key']}",
        }
        terms.append(shown[e["operator"]])
    return ",".join(terms) or "<none>"


def _deployment_row(obj: Object, now: datetime) -> list[Json]:
    status, spec = obj.get("status", {}), obj.get("spec", {})
    return [
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 1)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        *_template(obj),
        selector_text(spec.get("selector")),
    ]


def _replica_set_row(obj: Object, now: datetime) -> list[Json]:
    status, spec = obj.get("status", {}), obj.get("spec", {})
    counts = [spec.get("replicas", 1), status.get("replicas", 0), status.get("readyReplicas", 0)]
    return [*counts, *_template(obj), selector_text(spec.get("selector"))]


_WORKLOAD_WIDE = ("Containers", "Images", "Selector")
DEPLOYMENTS = _printer("Ready Up-to-date# Available#", _deployment_row, _WORKLOAD_WIDE)
REPLICA_SETS = _printer("Desired# Current# Ready#", _replica_set_row, _WORKLOAD_WIDE)


def _service_row(service: Object, now: datetime) -> list[Json]:
    spec = service.get("spec", {})
    ports = [
        f"{p['port']}{':' + str(p['nodePort']) if p.get('nodePort') else ''}/{p.get('protocol', 'TCP')}"
        for p in spec.get("ports") or ()
    ]
    ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress") or []
    external = [*(i.get("ip") or i.get("hostname", "") for i in ingress), *(spec.get("externalIPs") or ())]
    kind = spec.get("type", "ClusterIP")
    nothing = "<pending>" if kind == "LoadBalancer" else "<none>"
    selector = ",".join(f"{k}={v}" for k, v in sorted((spec.get("selector") or {}).items()))
    return [
        kind,
        spec.get("clusterIP") or "<none>",
        spec.get("externalName") or ",".join(external) or nothing,
        ",".join(ports) or "<none>",
        selector or "<none>",
    ]


SERVICES = _printer("Type Cluster-IP External-IP Port(s)", _service_row, ("Selector",))
