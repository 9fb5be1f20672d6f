"""Steps on the Workload of a job: it is made, reports readiness, gives quota back, and ends.

MultiKueue may have sent the job to another cluster: its pods are there, and its status is copied from there.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from longshore.api.reasons import EventReason
from longshore.api.rljob import RLJob
from longshore.api.status import WITHOUT_PODS, Phase
from longshore_kube.times import parse_time, rfc3339
from longshore_operator.config import OperatorConfig
from longshore_operator.context import Context
from longshore_operator.identity import Identity
from longshore_operator.kueue.kueue_admission import reclaimable
from longshore_operator.kueue.view import (
    ANNOTATION_SUSPENDED,
    DEACTIVATED,
    DEACTIVATED_DUE_TO,
    LABEL_PREBUILT,
    KueueView,
    Object,
)
from longshore_operator.kueue.workload import (
    MAX_POD_SETS,
    is_outdated,
    newer_generation,
    requested_pod_sets,
    uncovered,
    workload,
    workload_name,
)
from longshore_operator.plan import CreateObject, DeleteObject, Event, ObjectAction, Outcome, PatchObject
from longshore_operator.pod_view import PodView, hold_resources

_REQUEUED_AT_ONCE = frozenset({"Preempted", "NodeFailures"})
"""Evictions after which the owner asks to be queued again; after the others, Kueue decides when."""

_MISTAKE_LOOK = timedelta(seconds=30)
"""Interval of retries, because no event shows that a mistake was corrected."""
_TAKE_OVER_LOOK = timedelta(seconds=1)
"""Interval of retries, because no event shows a change of a Workload that is not the job's yet."""
_STOP: Final = timedelta(minutes=5)
"""Time to stop there after an eviction here. Older versions of MultiKueue do not ask the other cluster to stop the job:
it is deleted there when the quota is given back here."""


def reconcile_kueue(context: Context) -> Outcome:
    """Take at most one step; a change of the Workload wakes the job for the next one."""
    view = context.observed.kueue
    if view is None:
        return Outcome()
    look_at = _retry_at(context, view)
    if view.version is None:
        return Outcome(requeue_at=look_at)
    step = _step(context, view)
    if step is None:
        return _reclaim(context, view) or Outcome(requeue_at=look_at)
    return Outcome(actions=(step,), requeue_at=look_at)


def _retry_at(context: Context, view: KueueView) -> datetime | None:
    if context.progress.finished:
        return None
    if view.mistake:
        return context.now + _MISTAKE_LOOK
    return context.now + _TAKE_OVER_LOOK if view.is_unowned else None


def _step(context: Context, view: KueueView) -> ObjectAction | None:
    found, progress = view.workload, context.progress
    if view.is_foreign(Identity.of(context.job).uid):
        return None
    has_pods = hold_resources(context.observed.pods)
    if progress.finished:
        if found is None or has_pods or view.holds("Finished"):
            return None
        reason = "Succeeded" if progress.phase is Phase.SUCCEEDED else "Failed"
        message = progress.message or "the job has ended"
        return _conditions(context, view, {"Finished": (True, reason, message)})
    if found is not None and view.is_unowned:
        return None if view.mistake else _take_over(context, view, found)
    if found is None:
        waits = view.mistake or progress.suspended
        return None if waits else CreateObject(workload(context.job, context.config, view), view.kind)
    if _waits_for_pod_group(context) and not view.is_prebuilt:
        # Without its PodGroup, a job does not start: it waits without quota.
        return next(iter(abandon(view, context.observed.pods)), None)
    if progress.suspended and view.is_active:
        # Kueue gives the quota of an inactive Workload to others at once, without waiting for its eviction.
        return None if has_pods else activate(view, active=False)
    if progress.suspended and view.is_deactivated:
        # From now on it is inactive for the sake of the suspension, and ends with it.
        return _patch(view, {"metadata": {"annotations": {ANNOTATION_SUSPENDED: "true"}}})
    if view.holds("Evicted") and view.holds("QuotaReserved"):
        return None if has_pods else release(context, view)
    if not progress.suspended and not view.is_active:
        # With its old admission, Kueue would count the quota again that others may have by now.
        if view.is_deactivated or view.holds("QuotaReserved"):
            return None
        if not _gives_up(context, view, has_pods=has_pods):
            return activate(view, active=True)
    if _gives_up(context, view, has_pods=has_pods):
        return _deletion(view, found)
    if not (view.holds("QuotaReserved") or view.mistake or progress.suspended or view.is_prebuilt):
        change = newer_generation(found, workload(context.job, context.config, view))
        if change is not None:
            return _patch(view, change)
    if progress.active and view.holds("Admitted"):
        return pods_ready(context, view)
    return None


def _waits_for_pod_group(context: Context) -> bool:
    group = context.observed.pod_group
    return group is not None and group.keeps_waiting(context.job.status)


def abandon(view: KueueView | None, pods: tuple[PodView, ...]) -> tuple[DeleteObject, ...]:
    """Give up the Workload of a job that cannot be read, once none of its pods needs the quota."""
    if view is None or view.version is None or view.workload is None or hold_resources(pods):
        return ()
    return (_deletion(view, view.workload),)


def too_many_pod_sets(manifest: Object) -> str:
    """Return why Kueue would refuse the Workload; empty: it would not."""
    count = len(manifest["spec"]["podSets"])
    if count <= MAX_POD_SETS:
        return ""
    return (
        f"the job has {count} kinds of pods, and Kueue takes {MAX_POD_SETS} at most: use fewer judges with a pool and "
        "fewer environments"
    )


def unusable(job: RLJob, config: OperatorConfig, view: KueueView) -> str:
    """Return why a prebuilt Workload cannot speak for a job; empty: it can."""
    name = workload_name(job)
    if view.workload is None:
        return f"there is no Workload {name}, which the label {LABEL_PREBUILT} names: wait for MultiKueue, or remove it"
    if _has_begun(job):
        return ""  # A new version of the operator may ask for more, and restarts no job that runs.
    if found := uncovered(view.workload, requested_pod_sets(job, config)):
        return (
            f"Workload {name} asks for less than the {found} pods of the job need: let the cluster that made it run "
            "the same version of Longshore"
        )
    return ""


def _has_begun(job: RLJob) -> bool:
    """Return whether the job has an attempt with the spec that it has now."""
    status = job.status
    is_current = status.observed_generation == Identity.of(job).generation
    return is_current and status.attempt > 0 and status.phase not in WITHOUT_PODS


def _take_over(context: Context, view: KueueView, found: Object) -> PatchObject:
    """Make the job the owner of a prebuilt Workload, which is then deleted with it, and followed."""
    metadata, identity = found["metadata"], Identity.of(context.job)
    change = {
        "resourceVersion": metadata["resourceVersion"],
        "labels": identity.labels(),
        "ownerReferences": [*(metadata.get("ownerReferences") or ()), identity.owner_reference()],
    }
    return _patch(view, {"metadata": change})


def activate(view: KueueView, *, active: bool) -> PatchObject:
    """Let the Workload of a job that is not suspended queue, and that of a suspended one be inactive for its sake."""
    annotations = {ANNOTATION_SUSPENDED: None if active else "true"}
    return _patch(view, {"metadata": {"annotations": annotations}, "spec": {"active": active}})


def _gives_up(context: Context, view: KueueView, *, has_pods: bool) -> bool:
    """Return whether the Workload makes room for one that fits: it has no quota, or its quota is for other settings."""
    if context.progress.suspended:
        return False
    if view.holds("QuotaReserved"):
        return context.progress.queued and not has_pods and is_outdated(context.job, context.config, view)
    return not view.mistake and is_outdated(context.job, context.config, view)


def pods_ready(context: Context, view: KueueView) -> ObjectAction | None:
    """Return the condition PodsReady, which Kueue reads where it waits for pods (`waitForPodsReady`)."""
    is_ready, known = context.decided.phase is Phase.RUNNING, view.condition("PodsReady")
    if is_ready == (known.get("status") == "True"):
        return None
    reason = ("PodsReady", "all pods are ready") if is_ready else ("WaitForRecovery", "pods are being replaced")
    return _conditions(context, view, {"PodsReady": (is_ready, *reason)})


def _reclaim(context: Context, view: KueueView) -> Outcome | None:
    """Give quota of reward pods back that were not wanted for long; None: all of them may be."""
    rewards, step = context.decided.rewards, context.runtime.step if context.runtime is not None else None
    if not (context.progress.active and view.holds("Admitted")):
        return None
    found = reclaimable(view, rewards, step, context.observed.pods, context.now)
    if found is None:
        return None
    message = (
        f"no more than {rewards.peak} reward pods were wanted since {rewards.peak_since}: Kueue gets the quota of the "
        "others back, and the job has no more of them until it is admitted again"
    )
    event = Event("Normal", EventReason.QUOTA_RETURNED, message, f"reclaimed-{context.progress.attempt}-{rewards.peak}")
    return Outcome(actions=(_status_patch(view, {"reclaimablePods": found}),), events=(event,))


def release(context: Context, view: KueueView) -> ObjectAction:
    """Give the quota back: no pod uses it any more."""
    evicted = view.condition("Evicted")
    reason, message = evicted.get("reason", ""), evicted.get("message", "")
    if reason.startswith(DEACTIVATED_DUE_TO):
        reason = DEACTIVATED  # By this word Kueue knows that the Workload returns as soon as it is active again.
    # Kueue sets it again while the pods of the inactive Workload end, and would deactivate what a person activates.
    reached = {} if view.is_active else {"DeactivationTarget": None}
    changes = reached | {
        "QuotaReserved": (False, "Pending", message),
        "Admitted": (False, "NoReservation", "the workload has no reservation"),
        "PodsReady": (False, "WaitForStart", "the pods were stopped"),
        "Requeued": (reason in _REQUEUED_AT_ONCE, reason, message),
    }
    return _conditions(context, view, changes, admission=None, reclaimablePods=None)


def _conditions(
    context: Context, view: KueueView, changes: Mapping[str, tuple[bool, str, str] | None], **status: Any
) -> PatchObject:
    """Set conditions, and remove those that become None."""
    assert view.workload is not None, "there is a Workload"
    kept = [one for one in view.status.get("conditions") or () if one["type"] not in changes]
    generation = view.workload["metadata"].get("generation", 0)
    changed = [
        _condition(view, kind, *change, generation, context.now)
        for kind, change in changes.items()
        if change is not None
    ]
    return _status_patch(view, {"conditions": [*kept, *changed], **status})


def _condition(
    view: KueueView, kind: str, holds: bool, reason: str, message: str, generation: int, now: datetime
) -> dict[str, Any]:
    before, status = view.condition(kind), "True" if holds else "False"
    since = before["lastTransitionTime"] if before.get("status") == status else rfc3339(now)
    return {
        "type": kind,
        "status": status,
        "reason": reason or "Unknown",
        "message": message[:1024],
        "lastTransitionTime": since,
        "observedGeneration": generation,
    }


def _deletion(view: KueueView, found: Object) -> DeleteObject:
    return DeleteObject(found["metadata"]["name"], found["metadata"]["uid"], view.kind)


def _patch(view: KueueView, change: dict[str, Any], subresource: str = "") -> PatchObject:
    assert view.workload is not None, "there is a Workload"
    return PatchObject(view.workload["metadata"]["name"], view.kind, change, subresource)


def _status_patch(view: KueueView, status: dict[str, Any]) -> PatchObject:
    """Return a merge patch with the version of the object that it was made from, since it replaces lists as a whole."""
    assert view.workload is not None, "there is a Workload"
    version = {"resourceVersion": view.workload["metadata"]["resourceVersion"]}
    return _patch(view, {"metadata": version, "status": status}, "status")


def reconcile_elsewhere(context: Context) -> Outcome:
    """Return steps on the Workload; MultiKueue ends it when the job has ended."""
    view, status = context.observed.kueue, context.job.status
    if view is None or view.workload is None or view.version is None or context.progress.finished:
        return Outcome()
    if context.job.spec.suspend and view.is_active:
        return Outcome(actions=(activate(view, active=False),))
    if not view.holds("Evicted"):
        step = pods_ready(context, view)
        return Outcome(actions=() if step is None else (step,))
    holds_gpus = status.admission is not None and bool(status.admission.gpus)
    until = parse_time(view.condition("Evicted")["lastTransitionTime"]) + _STOP
    if until > context.now and (holds_gpus or status.phase not in WITHOUT_PODS):
        return Outcome(requeue_at=until)
    return Outcome(actions=(release(context, view),))
