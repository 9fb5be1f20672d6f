"""Slim, immutable views of the pods of jobs; whole objects are not kept."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from longshore.api import contract, names
from longshore.api.names import Component
from longshore_operator.identity import Identity, controller

_KUEUE_GATE: Final = "kueue.x-k8s.io/admission"
_RAISED: Final = re.compile(r"^[A-Za-z_][\w.]*(?::|$)", re.MULTILINE)
"""The line of a traceback that names the exception: the first that is not indented."""
_KUEUE_HOLDS_IT: Final = (
    "Kueue holds the pod back by itself, although the job has its GPUs: add RLJob.v1alpha1.longshore.dev to "
    "integrations.externalFrameworks in Kueue's configuration; then suspend and resume the job"
)
"""Reason of a pod with the gate of Kueue's integration of pods, which the operator sets on none."""
_MAX_MESSAGE_LENGTH = 4096
"""Longest termination message, in characters."""
_NUM_INDICES = 65_536
"""Limit of indices, more than any job that the API takes has pods of one component.

Pods can be created by others.
"""
_NO_ATTEMPT: Final = -1
"""Attempt of a pod that does not say which it belongs to: it is older than any."""
NORMAL_WAITS = frozenset({"ContainerCreating", "PodInitializing"})
"""Why the container of a healthy pod waits."""
_TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class ServerEnd:
    """How the server of an environment pod has ended, before the kubelet starts it again."""

    exit_code: int
    finished_at: str = ""
    """RFC 3339."""
    is_out_of_memory: bool = False
    message: str = ""
    """What it has said last."""


@dataclass(frozen=True, slots=True)
class PodView:
    """Facts about one pod that decisions need."""

    name: str
    namespace: str
    uid: str
    job: str
    component: Component
    index: int
    attempt: int
    phase: str = "Pending"
    reason: str = ""
    """`status.reason` of the pod: Evicted, NodeLost and the like."""
    ip: str | None = None
    ready: bool = False
    ready_since: str | None = None
    """RFC 3339; None while it is not ready."""
    deleting: bool = False
    scheduled: bool = False
    node: str | None = None
    exit_code: int | None = None
    is_out_of_memory: bool = False
    """Whether the kubelet says that the main container was killed for using more memory than its limit."""
    memory_limit: str = ""
    """Memory that the main container may use, as a quantity; empty: it has no limit."""
    termination_message: str = ""
    unschedulable: str | None = None
    """The scheduler's message while no node fits."""
    disruption: str | None = None
    """Why the cluster ended the pod (condition DisruptionTarget)."""
    waiting_reason: str | None = None
    waiting_message: str = ""
    role: str | None = None
    tp_size: str | None = None
    others_run: bool = False
    """Whether the main container has ended, and the pod as a whole has not."""
    others_stay: bool = False
    """Whether, in addition, another container runs that nobody ends: the kubelet ends only sidecars."""
    server_end: ServerEnd | None = None
    """How the server of an environment pod ended last; None: it has not ended yet."""
    owner_uid: str = ""
    """uid of the RLJob that the pod was created for, which may be an earlier job of the same name."""
    wrong_labels: tuple[tuple[str, str], ...] = ()
    """Labels that somebody has changed or removed, with the values that they must have."""
    is_hidden: bool = False
    """Whether the watch does not show the pod: it is gone, or has lost the label that the watch selects by."""

    @property
    def terminal(self) -> bool:
        """Whether the pod has ended, although its object still exists."""
        return self.phase in _TERMINAL_PHASES

    @property
    def is_over(self) -> bool:
        """Whether the pod has ended, or ends without being deleted."""
        return self.terminal and not self.others_stay

    @property
    def holds_resources(self) -> bool:
        """Whether the pod occupies GPUs."""
        return not self.terminal or self.others_run


def hold_resources(pods: Iterable[PodView]) -> bool:
    """Return whether one of the pods occupies GPUs."""
    return any(pod.holds_resources for pod in pods)


def comes_up(before: PodView, after: PodView) -> bool:
    """Return whether a pod only came closer to being ready, as all pods of a job do at its start.

    The address of a coordinator is more than that: other pods are created with it.
    """
    stages: dict[str, Any] = {
        "phase": after.phase,
        "scheduled": after.scheduled,
        "node": after.node,
        "ready": after.ready,
        "ready_since": after.ready_since,
    }
    if after.component is not Component.COORDINATOR:
        stages["ip"] = after.ip
    if after.waiting_reason is None or after.waiting_reason in NORMAL_WAITS:
        stages |= {"waiting_reason": after.waiting_reason, "waiting_message": after.waiting_message}
    is_worse = after.terminal or after.ready < before.ready or after.unschedulable is not None
    return not is_worse and replace(before, **stages, unschedulable=None) == after


def _end_message(status: Mapping[str, Any], terminated: Mapping[str, Any]) -> str | None:
    """Return what the container says of its end; of an evicted pod, what the node says, which knows why."""
    messages = [_last_words(terminated.get("message")), status.get("message")]
    if status.get("reason") == "Evicted":
        messages.reverse()
    return next(filter(None, messages), None)


def _last_words(message: str | None) -> str | None:
    """Return a message of an end, of a traceback what was raised: the frames before it fill what is shown."""
    _, found, frames = (message or "").rpartition("Traceback (most recent call last)")
    raised = _RAISED.search(frames)
    return frames[raised.start() :].strip() if found and raised is not None else message


def _memory_limit(spec: Mapping[str, Any]) -> str:
    containers = spec.get("containers") or ()
    main: Mapping[str, Any] = next((one for one in containers if one["name"] == contract.CONTAINER), {})
    return str(((main.get("resources") or {}).get("limits") or {}).get("memory", ""))


def pod_view(pod: Mapping[str, Any]) -> PodView:
    """Return the slim view of a pod of an RLJob.

    Owner, name and spec say what the pod is, because they cannot change while it exists. Its labels can: people and
    policies of a platform edit them.

    Raises:
        ValueError: no RLJob controls the pod, or no pod of that job has its name.
    """
    metadata, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    labels, owner = metadata.get("labels") or {}, _owner(metadata)
    component, index = _place(owner["name"], metadata["name"])
    attempt = _attempt(spec, labels)
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    container = _main_container_state(status)
    terminated, waiting = container.get("terminated") or {}, container.get("waiting") or {}
    scheduled = conditions.get("PodScheduled", {})
    disruption, ready = conditions.get("DisruptionTarget", {}), conditions.get("Ready", {})
    is_ready = ready.get("status") == "True"
    return PodView(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        job=owner["name"],
        component=component,
        index=index,
        attempt=attempt,
        phase=_phase(status, container),
        reason=status.get("reason", ""),
        ip=status.get("podIP") or None,
        ready=is_ready,
        ready_since=ready.get("lastTransitionTime") if is_ready else None,
        deleting="deletionTimestamp" in metadata,
        scheduled=bool(spec.get("nodeName")),
        node=spec.get("nodeName"),
        exit_code=terminated.get("exitCode"),
        is_out_of_memory=terminated.get("reason") == "OOMKilled",
        memory_limit=_memory_limit(spec),
        termination_message=_shortened(_end_message(status, terminated)),
        unschedulable=_unschedulable(scheduled, spec),
        disruption=disruption.get("reason") if disruption.get("status") == "True" else None,
        waiting_reason=waiting.get("reason"),
        waiting_message=_shortened(waiting.get("message")),
        role=labels.get(names.LABEL_ROLE),
        tp_size=labels.get(names.LABEL_TP_SIZE),
        others_run="terminated" in container and status.get("phase") == "Running",
        others_stay="terminated" in container and _is_another_running(status),
        server_end=_server_end(status),
        owner_uid=owner.get("uid", ""),
        wrong_labels=_wrong_labels(metadata, component, index, attempt),
    )


def is_of_job(metadata: Mapping[str, Any], job: str) -> bool:
    """Return whether an RLJob of this name controls the object: the present one, or an earlier one."""
    owner = controller(metadata)
    group, _, _ = str(owner.get("apiVersion", "")).partition("/")
    return (group, owner.get("kind"), owner.get("name")) == (names.GROUP, names.KIND, job)


def _owner(metadata: Mapping[str, Any]) -> dict[str, Any]:
    owner = controller(metadata)
    if not is_of_job(metadata, owner.get("name", "")):
        raise ValueError("no RLJob controls the pod")
    return owner


def _place(job: str, pod: str) -> tuple[Component, int]:
    """Return component and index of a pod of a job, which its name consists of; raises ValueError."""
    kind, _, number = pod.removeprefix(f"{job}-").partition("-")
    component, index = Component(kind), int(number or 0)
    if pod not in (f"{job}-{kind}", f"{job}-{kind}-{index}") or not 0 <= index < _NUM_INDICES:
        raise ValueError(f"no pod of the job {job} is called {pod}")
    return component, index


def _attempt(spec: Mapping[str, Any], labels: Mapping[str, str]) -> int:
    """Return the attempt that the pod was started with, which its label may not say any more."""
    containers = [one for one in spec.get("containers") or () if one.get("name") == contract.CONTAINER]
    written = [
        one.get("value") for own in containers for one in own.get("env") or () if one["name"] == contract.ENV_ATTEMPT
    ]
    texts = [*written, labels.get(names.LABEL_ATTEMPT)]
    return next((int(text) for text in texts if text is not None and text.isdecimal()), _NO_ATTEMPT)


def _wrong_labels(
    metadata: Mapping[str, Any], component: Component, index: int, attempt: int
) -> tuple[tuple[str, str], ...]:
    owner, labels = controller(metadata), metadata.get("labels") or {}
    identity = Identity(owner["name"], metadata["namespace"], owner.get("uid", ""), generation=0)
    wanted = identity.pod_labels(component, index, attempt)
    return tuple((name, value) for name, value in wanted.items() if labels.get(name) != value)


def _is_another_running(status: Mapping[str, Any]) -> bool:
    entries = status.get("containerStatuses") or ()
    return any(entry["name"] != contract.CONTAINER and "running" in entry.get("state", {}) for entry in entries)


def _main_container_state(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of the main container, or of a waiting or failed init container before it has started."""
    states: dict[str, dict[str, Any]] = {
        entry["name"]: entry.get("state", {}) for entry in status.get("containerStatuses") or ()
    }
    own = states.get(contract.CONTAINER, {})
    if "running" in own or "terminated" in own:
        return own
    for entry in status.get("initContainerStatuses") or ():
        state: dict[str, Any] = entry.get("state", {})
        waits = state.get("waiting", {}).get("reason") not in (None, "PodInitializing")
        has_failed = (state.get("terminated", {}).get("exitCode") or 0) != 0
        if waits or (has_failed and entry["name"] != contract.SERVER_CONTAINER):  # The kubelet restarts that.
            return state
    return own


def _server_end(status: Mapping[str, Any]) -> ServerEnd | None:
    for entry in status.get("initContainerStatuses") or ():
        if entry["name"] != contract.SERVER_CONTAINER:
            continue
        states = (entry.get("state") or {}, entry.get("lastState") or {})
        for terminated in (state["terminated"] for state in states if "terminated" in state):
            return ServerEnd(
                terminated.get("exitCode", 0),
                terminated.get("finishedAt") or "",
                terminated.get("reason") == "OOMKilled",
                _shortened(_last_words(terminated.get("message"))),
            )
    return None


def _phase(status: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    """Return the pod's phase; once the main container has ended, a running sidecar does not keep the pod alive."""
    phase: str = status.get("phase", "Pending")
    if phase == "Running" and "terminated" in container:
        return "Succeeded" if container["terminated"].get("exitCode") == 0 else "Failed"
    return phase


def _unschedulable(condition: Mapping[str, Any], spec: Mapping[str, Any]) -> str | None:
    if any(gate.get("name") == _KUEUE_GATE for gate in spec.get("schedulingGates") or ()):
        return _KUEUE_HOLDS_IT
    if condition.get("status") == "False" and condition.get("reason") == "Unschedulable":
        return _shortened(condition.get("message", "no node fits"))
    if foreign := [gate["name"] for gate in spec.get("schedulingGates") or () if not _is_of_kueue(gate["name"])]:
        return _shortened(f"scheduling gates hold it back until whoever set them removes them: {', '.join(foreign)}")
    return None


def _is_of_kueue(gate: str) -> bool:
    return gate.partition("/")[0] == _KUEUE_GATE.partition("/")[0]


def _shortened(message: str | None) -> str:
    """Shorten a text: views are kept, and the writer of a pod's status chooses its length."""
    return (message or "")[:_MAX_MESSAGE_LENGTH].strip()
