"""One RLJob as the watch shows it: its status, read with tolerance for fields of newer versions."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from longshore.api.mistakes import sentence
from longshore.api.reasons import ReadyReason, RestartReason, ScheduledReason
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.status import FINISHED_PHASES, Condition, ConditionStatus, ConditionType, Phase, RLJobStatus
from longshore_client.errors import ClientError
from longshore_kube.resources import Json

_HAVE_PODS: Final = frozenset({Phase.STARTING, Phase.RUNNING, Phase.RESTARTING})
_BEGINNING: Final = frozenset({Phase.QUEUED, Phase.PENDING, Phase.STARTING})
_NOT_YET: Final = frozenset({ScheduledReason.WAITING_FOR_PODS, ReadyReason.PODS_NOT_READY, ReadyReason.QUEUED})
"""Reasons that a job has in its beginning when nothing is wrong. Why it is queued, its condition Admitted says."""
_OWN_REASONS: Final = frozenset((*ReadyReason, *RestartReason))
"""Reasons of the condition Ready that do not come from the kubelet."""


@dataclass(frozen=True)
class JobView:
    """What a person is shown of a job."""

    namespace: str
    name: str
    uid: str
    strategy: str
    steps: int
    """Asked for. Deferred draws may be trained in one step more."""
    created: str | None
    """RFC 3339."""
    status: RLJobStatus

    @property
    def runtime(self) -> RuntimeStatus:
        """Report of the coordinator; zeros before its first report."""
        return self.status.runtime or RuntimeStatus()

    @property
    def phase(self) -> Phase:
        """Phase of the job; Pending until the operator has reconciled it."""
        return self.status.phase or Phase.PENDING

    @property
    def is_finished(self) -> bool:
        """Succeeded or Failed."""
        return self.phase in FINISHED_PHASES


@dataclass(frozen=True)
class EventView:
    """A Kubernetes event about the job."""

    uid: str
    time: str
    type: str
    reason: str
    message: str


def job_view(job: Json) -> JobView:
    """Read an RLJob as the API server gives it; fields that this version does not know are passed over."""
    spec = job.get("spec") or {}
    status = _status(job.get("status") or {})
    return JobView(
        namespace=job["metadata"].get("namespace", "default"),
        name=job["metadata"]["name"],
        uid=job["metadata"].get("uid", ""),
        strategy=(spec.get("rollout") or {}).get("strategy", ""),
        steps=(spec.get("algorithm") or {}).get("steps", 0),
        created=job["metadata"].get("creationTimestamp"),
        status=status,
    )


def _status(stored: Json) -> RLJobStatus:
    """Read the status without a `runtime` that cannot be read: pods write it, and it hides nothing else."""
    try:
        return RLJobStatus.model_validate(stored, extra="ignore")
    except ValidationError as error:
        if "runtime" in stored:
            return _status({name: value for name, value in stored.items() if name != "runtime"})
        raise ClientError(f"The status of the RLJob cannot be read: {sentence(error, 'status')}.") from error


def event_view(event: Json) -> EventView:
    """Read a core/v1 event."""
    return EventView(
        uid=event["metadata"].get("uid", ""),
        time=_event_time(event),
        type=event.get("type") or "Normal",
        reason=event.get("reason") or "",
        message=" ".join((event.get("message") or "").split()),
    )


def _event_time(event: Json) -> str:
    """Return when an event happened last; of times in the same second the one with microseconds says more."""
    fine, coarse = event.get("eventTime") or "", event.get("lastTimestamp") or ""
    second = len("2026-01-01T00:00:00")
    if fine and fine[:second] >= coarse[:second]:
        return str(fine)
    return str(coarse or event["metadata"].get("creationTimestamp") or "")


def newest_events(events: Iterable[EventView], limit: int) -> tuple[EventView, ...]:
    """Return the newest `limit` events, oldest first."""
    return tuple(sorted(events, key=lambda event: (event.time.rstrip("Z"), event.uid)))[-limit:]


def steps_text(done: int, total: int) -> str:
    """Format steps as `3/12`, or as `12/12 + 1` if deferred draws took a further step at the end."""
    return f"{done}/{total}" if done <= total else f"{total}/{total} + {done - total}"


def problems(view: JobView) -> tuple[Condition, ...]:
    """Return conditions that are not well: not those that are merely not yet true, or no longer after the end."""
    return tuple(condition for condition in view.status.conditions if _is_problem(condition, view))


def lacking(view: JobView) -> str:
    """Return which pod keeps a job waiting that has begun, and why; empty: its pods are there, or start as usual."""
    if view.phase not in _HAVE_PODS:
        return ""
    scheduled, ready = (view.status.condition(kind) for kind in (ConditionType.SCHEDULED, ConditionType.READY))
    if scheduled is not None and scheduled.reason == ScheduledReason.UNSCHEDULABLE:
        return scheduled.message
    if ready is None or ready.status is not ConditionStatus.FALSE or ready.reason in _OWN_REASONS:
        return ""
    return f"{ready.reason}: {ready.message}"


def assigned(view: JobView) -> str:
    """Return what GPU pods were asked to do last, and why; empty while they do what they began with."""
    assignment = view.status.assignment
    if assignment.epoch <= 1:
        return ""
    rejected = view.runtime.rejected_reason if view.runtime.rejected_epoch == assignment.epoch else ""
    return f"{assignment.reason} (refused: {rejected})" if rejected else assignment.reason


def verdict(view: JobView) -> str:
    """Return the sentence of the condition that says how the job ended."""
    wanted = ConditionType.COMPLETE if view.phase is Phase.SUCCEEDED else ConditionType.FAILED
    for condition in view.status.conditions:
        if condition.type == wanted and condition.status is ConditionStatus.TRUE:
            return f"{condition.reason}: {condition.message}" if condition.message else condition.reason
    return "no reason given"


def _is_problem(condition: Condition, view: JobView) -> bool:
    match condition.type:
        case ConditionType.ADMITTED | ConditionType.SCHEDULED | ConditionType.READY:
            is_expected = view.is_finished or (view.phase in _BEGINNING and condition.reason in _NOT_YET)
            return condition.status is ConditionStatus.FALSE and not is_expected
        case ConditionType.COMPLETE | ConditionType.REPURPOSED | ConditionType.RESIZING:
            return False
        case _:
            return condition.status is ConditionStatus.TRUE
