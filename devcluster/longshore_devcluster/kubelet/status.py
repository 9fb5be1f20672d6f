"""The status of a pod, computed from what its containers did. Pure: times are Unix seconds given by the caller."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from longshore_devcluster.client.objects import condition
from longshore_kube.resources import Json
from longshore_kube.times import parse_time, rfc3339

FINAL_PHASES: Final = ("Succeeded", "Failed")


class Role(Enum):
    """What a container is to its pod."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


@dataclass(frozen=True)
class Waiting:
    """Not running yet, or not again."""

    reason: str
    message: str = ""


@dataclass(frozen=True)
class Running:
    """Running since `started_s`."""

    started_s: float


@dataclass(frozen=True)
class Terminated:
    """Ended, with the exit code (128 + N after signal N)."""

    exit_code: int
    reason: str
    started_s: float
    finished_s: float
    message: str = ""
    container_id: str = ""


State = Waiting | Running | Terminated


@dataclass
class ContainerRecord:
    """Everything that is known of one container of a pod."""

    name: str
    image: str
    role: Role
    state: State = Waiting("ContainerCreating")
    last: Terminated | None = None
    num_restarts: int = 0
    ready: bool = False
    started: bool = False
    container_id: str = ""

    @property
    def done(self) -> bool:
        """Whether the last instance has ended well."""
        return isinstance(self.state, Terminated) and self.state.exit_code == 0


@dataclass
class PodRecord:
    """What the kubelet knows of one pod beyond its specification."""

    containers: list[ContainerRecord]
    start_s: float
    pod_ip: str
    host_ip: str
    transitions: dict[str, tuple[str, float]] = field(default_factory=dict)
    explained: set[str] = field(default_factory=set)
    over: bool = False
    """Whether nothing of the pod will be started again, whatever its restart policy says."""
    failed: tuple[str, str] | None = None
    """(reason, message) of a failure of the pod as a whole, as by its deadline."""

    def of_role(self, *roles: Role) -> list[ContainerRecord]:
        """Return the containers with one of these roles, in order."""
        return [record for record in self.containers if record.role in roles]


def new_records(pod: Json) -> list[ContainerRecord]:
    """Return the records of a pod of which nothing has run."""
    spec = pod["spec"]
    init = spec.get("initContainers") or []
    created = [
        ContainerRecord(
            container["name"],
            container.get("image", ""),
            Role.SIDECAR if container.get("restartPolicy") == "Always" else Role.INIT,
            Waiting("PodInitializing"),
        )
        for container in init
    ]
    first = Waiting("PodInitializing") if init else Waiting("ContainerCreating")
    main = [ContainerRecord(entry["name"], entry.get("image", ""), Role.MAIN, first) for entry in spec["containers"]]
    return created + main


def load_pod_record(pod: Json, pod_ip: str, host_ip: str, now_s: float) -> PodRecord:
    """Return the record of a pod that has come to this kubelet, new or from the kubelet's earlier life."""
    status = pod.get("status") or {}
    start_s = parse_time(status["startTime"]).timestamp() if status.get("startTime") else now_s
    record = PodRecord(load_records(pod, now_s), start_s, pod_ip, host_ip)
    for entry in status.get("conditions") or []:
        since = entry.get("lastTransitionTime")
        record.transitions[entry["type"]] = (entry["status"], parse_time(since).timestamp() if since else now_s)
        if entry.get("reason"):
            record.explained.add(entry["type"])
    return record


def load_records(pod: Json, now_s: float) -> list[ContainerRecord]:
    """Return the records from the status that an earlier kubelet wrote; what was running then has been lost."""
    records = new_records(pod)
    status = pod.get("status") or {}
    known = {
        entry["name"]: entry
        for entry in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
    }
    for record in records:
        entry = known.get(record.name)
        if entry is None:
            continue
        record.num_restarts = entry.get("restartCount", 0)
        record.container_id = entry.get("containerID", "")
        last = (entry.get("lastState") or {}).get("terminated")
        record.last = _terminated(last) if last else None
        state = entry.get("state") or {}
        if "terminated" in state:
            record.state = _terminated(state["terminated"])
        elif "running" in state:
            started_s = parse_time(state["running"]["startedAt"]).timestamp()
            message = "The container could not be located after the kubelet restarted"
            record.state = Terminated(137, "ContainerStatusUnknown", started_s, now_s, message, record.container_id)
    return records


def _terminated(state: Json) -> Terminated:
    return Terminated(
        state["exitCode"],
        state.get("reason", ""),
        parse_time(state["startedAt"]).timestamp() if state.get("startedAt") else 0.0,
        parse_time(state["finishedAt"]).timestamp() if state.get("finishedAt") else 0.0,
        state.get("message", ""),
        state.get("containerID", ""),
    )


def pod_phase(pod: Json, record: PodRecord) -> str:
    """Return Pending, Running, Succeeded or Failed (Kubernetes docs, "Pod Lifecycle", pod phase).

    A pod is not over while a container still runs, as a sidecar that has been asked to stop.
    """
    phase = _phase_of_containers(pod, record)
    if phase not in FINAL_PHASES or not any(isinstance(entry.state, Running) for entry in record.containers):
        return phase
    return "Running" if all(init.done for init in record.of_role(Role.INIT)) else "Pending"


def _phase_of_containers(pod: Json, record: PodRecord) -> str:
    if record.failed:
        return "Failed"
    if record.over:
        return "Succeeded" if all(main.done for main in record.of_role(Role.MAIN)) else "Failed"
    policy = pod["spec"].get("restartPolicy", "Always")
    for init in record.of_role(Role.INIT):
        if isinstance(init.state, Terminated) and init.state.exit_code != 0 and policy == "Never":
            return "Failed"
        if not init.done:
            return "Pending"
    mains = record.of_role(Role.MAIN)
    if any(isinstance(main.state, Waiting) and main.last is None for main in mains):
        return "Pending"
    ended = [main.state for main in mains if isinstance(main.state, Terminated)]
    if len(ended) < len(mains) or policy == "Always":
        return "Running"
    if all(state.exit_code == 0 for state in ended):
        return "Succeeded"
    return "Failed" if policy == "Never" else "Running"


def pod_status(pod: Json, record: PodRecord, now_s: float) -> Json:
    """Return the whole `status` of a pod as the kubelet reports it."""
    phase = pod_phase(pod, record)
    status: Json = {
        "phase": phase,
        "conditions": _conditions(pod, record, phase, now_s),
        "hostIP": record.host_ip,
        "hostIPs": [{"ip": record.host_ip}],
        "podIP": record.pod_ip,
        "podIPs": [{"ip": record.pod_ip}],
        "startTime": rfc3339(record.start_s),
        "containerStatuses": [_container_status(entry) for entry in record.of_role(Role.MAIN)],
    }
    init = record.of_role(Role.INIT, Role.SIDECAR)
    if init:
        status["initContainerStatuses"] = [_container_status(entry) for entry in init]
    if record.failed and phase == "Failed":
        status["reason"], status["message"] = record.failed
    return status


def _conditions(pod: Json, record: PodRecord, phase: str, now_s: float) -> list[Json]:
    initialized = all(init.done for init in record.of_role(Role.INIT)) and all(
        sidecar.started for sidecar in record.of_role(Role.SIDECAR)
    )
    over = phase in FINAL_PHASES
    unready = [entry.name for entry in record.of_role(Role.MAIN, Role.SIDECAR) if not entry.ready]
    missing_gates = _missing_gates(pod)
    completed = "PodCompleted" if phase == "Succeeded" else "PodFailed" if phase == "Failed" else ""
    not_ready = completed or "ContainersNotReady"
    message = "" if completed else f"containers with unready status: [{' '.join(unready)}]"
    uninitialized = [entry.name for entry in record.of_role(Role.INIT, Role.SIDECAR) if not entry.done]
    gates_closed = bool(missing_gates) and not unready and not over
    why_unready = ("ReadinessGatesNotReady", missing_gates) if gates_closed else (not_ready, message)
    incomplete = f"containers with incomplete status: [{' '.join(uninitialized)}]"
    conditions = [
        _condition(record, now_s, "PodReadyToStartContainers", not over),
        _condition(
            record,
            now_s,
            "Initialized",
            initialized or phase == "Succeeded",
            completed or "ContainersNotInitialized",
            incomplete,
        ),
        _condition(record, now_s, "Ready", not (unready or over or missing_gates), *why_unready),
        _condition(record, now_s, "ContainersReady", not unready and not over, not_ready, message),
    ]
    scheduled = condition(pod, "PodScheduled")
    if scheduled is None or scheduled["status"] != "True":
        conditions.append(_condition(record, now_s, "PodScheduled", True))
    return conditions


def _missing_gates(pod: Json) -> str:
    true = {entry["type"] for entry in (pod.get("status") or {}).get("conditions") or [] if entry["status"] == "True"}
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or []]
    missing = [gate for gate in gates if gate not in true]
    return f"corresponding condition of pod readiness gates {missing} is not true" if missing else ""


def _condition(record: PodRecord, now_s: float, kind: str, holds: bool, reason: str = "", message: str = "") -> Json:
    value = "True" if holds else "False"
    known = record.transitions.get(kind)
    if known is None or known[0] != value:
        known = record.transitions[kind] = (value, now_s)
    entry = {"type": kind, "status": value, "lastTransitionTime": rfc3339(known[1])}
    if not holds and reason:
        record.explained.add(kind)
        return {**entry, "reason": reason, "message": message}
    # A reason that no longer holds must be cleared by name: the patch merges conditions by type.
    return {**entry, "reason": None, "message": None} if kind in record.explained else entry


def _container_status(record: ContainerRecord) -> Json:
    status: Json = {
        "name": record.name,
        "image": record.image,
        "imageID": "",
        "state": _state(record.state, record.container_id),
        "lastState": _state(record.last, "") if record.last else {},
        "ready": record.ready,
        "started": record.started,
        "restartCount": record.num_restarts,
    }
    if record.container_id:
        status["containerID"] = record.container_id
    return status


def _state(state: State, container_id: str) -> Json:
    match state:
        case Waiting(reason, message):
            return {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        case Running(started_s):
            return {"running": {"startedAt": rfc3339(started_s)}}
        case Terminated():
            ended = {
                "exitCode": state.exit_code,
                "reason": state.reason,
                "startedAt": rfc3339(state.started_s),
                "finishedAt": rfc3339(state.finished_s),
            }
            if state.message:
                ended["message"] = state.message
            named = state.container_id or container_id
            return {"terminated": ended | ({"containerID": named} if named else {})}
