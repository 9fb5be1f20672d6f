"""Phase and conditions: what people and tools read. Derived anew each time, with stable transition times."""

from dataclasses import dataclass
from datetime import datetime

from longshore.api.names import Component
from longshore.api.runtime_status import RuntimeActivity
from longshore.api.status import Condition, ConditionStatus, ConditionType, Phase, RLJobStatus
from longshore_operator.clock import timestamp
from longshore_operator.lifecycle import Progress
from longshore_operator.observed import ClaimView, Observed, PodView

_WAITING_IS_NORMAL = frozenset({"ContainerCreating", "PodInitializing"})
_MAX_MESSAGE_LENGTH = 1024


@dataclass(frozen=True, slots=True)
class Fact:
    """A condition before it has a history."""

    status: ConditionStatus
    reason: str
    message: str


def with_history(
    facts: dict[ConditionType, Fact], previous: list[Condition], generation: int, now: datetime
) -> list[Condition]:
    """Conditions in a fixed order; the transition time moves only when the status does."""
    before = {condition.type: condition for condition in previous}
    conditions = []
    for kind in ConditionType:
        fact, old = facts.get(kind), before.get(kind.value)
        if fact is None:
            continue
        same = old is not None and old.status is fact.status
        conditions.append(
            Condition(
                type=kind.value,
                status=fact.status,
                reason=fact.reason,
                message=fact.message[:_MAX_MESSAGE_LENGTH],
                last_transition_time=old.last_transition_time if old and same else timestamp(now),
                observed_generation=generation,
            )
        )
    return conditions


def facts(
    progress: Progress, observed: Observed, pods: tuple[PodView, ...], num_desired: int, status: RLJobStatus
) -> dict[ConditionType, Fact]:
    """What holds now; `pods` are those of the current attempt, `num_desired` how many there should be."""
    if progress.finished:
        return _finished_facts(progress, status)
    result = {ConditionType.SUSPENDED: _suspended(progress, status)}
    if progress.suspended:
        result[ConditionType.READY] = Fact(ConditionStatus.FALSE, "Suspended", "the job is suspended")
        return {kind: fact for kind, fact in result.items() if fact is not None}
    result[ConditionType.SCHEDULED] = _scheduled(pods, num_desired)
    result[ConditionType.READY] = _ready(progress, observed, pods, num_desired, status)
    return {kind: fact for kind, fact in result.items() if fact is not None}


def phase(progress: Progress, pods: tuple[PodView, ...], ready: bool, status: RLJobStatus) -> Phase:
    """One word for people. Pods that leave because the job is done do not make it restart."""
    if (
        status.phase is Phase.RUNNING
        and not progress.finished
        and not progress.suspended
        and _is_done(progress, status)
    ):
        return Phase.RUNNING
    if progress.phase is not None:
        return progress.phase
    if ready:
        return Phase.RUNNING
    if status.phase in (Phase.RUNNING, Phase.RESTARTING):
        return Phase.RESTARTING
    coordinator = next((pod for pod in pods if pod.component is Component.COORDINATOR), None)
    return Phase.STARTING if coordinator is not None and coordinator.scheduled else Phase.PENDING


def _is_done(progress: Progress, status: RLJobStatus) -> bool:
    """Whether the coordinator has said that all is done; its pod ends next."""
    runtime = status.runtime
    return runtime is not None and runtime.attempt == progress.attempt and runtime.activity is RuntimeActivity.DONE


def _finished_facts(progress: Progress, status: RLJobStatus) -> dict[ConditionType, Fact]:
    kind = ConditionType.COMPLETE if progress.phase is Phase.SUCCEEDED else ConditionType.FAILED
    old = next((condition for condition in status.conditions if condition.type == kind.value), None)
    reason = progress.reason or (old.reason if old else "Finished")
    message = progress.message or (old.message if old else "")
    return {
        kind: Fact(ConditionStatus.TRUE, reason, message),
        ConditionType.READY: Fact(ConditionStatus.FALSE, "Finished", "the job has ended"),
    }


def _suspended(progress: Progress, status: RLJobStatus) -> Fact | None:
    """Shown while suspended, and as False ever after."""
    if progress.suspended:
        return Fact(ConditionStatus.TRUE, progress.reason, progress.message)
    if any(condition.type == ConditionType.SUSPENDED.value for condition in status.conditions):
        return Fact(ConditionStatus.FALSE, "Resumed", "the job was resumed")
    return None


def _scheduled(pods: tuple[PodView, ...], num_desired: int) -> Fact:
    for pod in pods:
        if pod.unschedulable is not None and not pod.scheduled:
            return Fact(ConditionStatus.FALSE, "Unschedulable", f"{pod.name}: {pod.unschedulable}")
    num_scheduled = sum(pod.scheduled for pod in pods)
    if num_scheduled < num_desired:
        return Fact(ConditionStatus.FALSE, "WaitingForPods", f"{num_scheduled} of {num_desired} pods have a node")
    return Fact(ConditionStatus.TRUE, "Scheduled", f"all {num_desired} pods have a node")


def _ready(
    progress: Progress, observed: Observed, pods: tuple[PodView, ...], num_desired: int, status: RLJobStatus
) -> Fact:
    """Ready, or the one obstacle that explains most."""
    if observed.apply_error is not None:
        return Fact(ConditionStatus.FALSE, "ApplyFailed", observed.apply_error)
    if progress.phase is Phase.RESTARTING:
        return _restarting(progress, status)
    for pod in pods:
        if pod.waiting_reason is not None and pod.waiting_reason not in _WAITING_IS_NORMAL:
            detail = f": {pod.waiting_message}" if pod.waiting_message else ""
            return Fact(ConditionStatus.FALSE, pod.waiting_reason, f"{pod.name}{detail}")
    leaving = sorted(pod.name for pod in observed.pods if pod.attempt != progress.attempt or pod.deleting)
    if leaving:
        return Fact(ConditionStatus.FALSE, "WaitingForPodsToEnd", f"still ending: {_some(leaving)}")
    num_ready = sum(pod.ready for pod in pods)
    if num_ready >= num_desired:
        return Fact(ConditionStatus.TRUE, "PodsReady", f"all {num_desired} pods are ready")
    if observed.claim is not None:
        storage = _storage(observed.claim)
        if storage is not None:
            return storage
    return Fact(ConditionStatus.FALSE, "PodsNotReady", f"{num_ready} of {num_desired} pods are ready")


def _restarting(progress: Progress, status: RLJobStatus) -> Fact:
    """The reason of the restart stays visible for as long as it lasts."""
    if progress.reason:
        until = f"; restart not before {progress.restart_time}" if progress.restart_time else ""
        return Fact(ConditionStatus.FALSE, progress.reason, f"{progress.message}{until}")
    old = next((c for c in status.conditions if c.type == ConditionType.READY.value), None)
    if old is not None and old.status is ConditionStatus.FALSE:
        return Fact(old.status, old.reason, old.message)
    return Fact(ConditionStatus.FALSE, "Restarting", "failed pods are being replaced")


def _storage(claim: ClaimView) -> Fact | None:
    if not claim.exists:
        return Fact(
            ConditionStatus.FALSE,
            "StorageNotFound",
            f"there is no PersistentVolumeClaim {claim.name} in this namespace: create it, or use storage.create",
        )
    if claim.phase == "Pending":
        return Fact(ConditionStatus.FALSE, "StoragePending", f"PersistentVolumeClaim {claim.name} is not bound yet")
    if claim.phase == "Lost":
        return Fact(ConditionStatus.FALSE, "StorageLost", f"PersistentVolumeClaim {claim.name} lost its volume")
    return None


def _some(words: list[str], limit: int = 5) -> str:
    more = len(words) - limit
    return ", ".join(words[:limit]) + (f" and {more} more" if more > 0 else "")
