"""Whether a job with a queue may have pods, by its Workload: the first of Kueue's conditions that applies.

Reward pods that a job has not wanted for long are given up: Kueue may give their quota to other jobs. Within an
admission, Kueue gives no such quota back. So the job never has more pods than are left until it is admitted again, and
only pods that were wanted at no time of a long window are given up.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from longshore.api.names import Component
from longshore.api.reasons import AdmittedReason
from longshore.api.rljob import RLJob
from longshore.api.status import RewardPodCounts
from longshore_kube.times import parse_time, rfc3339
from longshore_operator.admission.demand import gang
from longshore_operator.context import Admission
from longshore_operator.identity import Identity
from longshore_operator.kueue.view import DEACTIVATED_DUE_TO, GROUP, LABEL_QUEUE, KueueView, Object
from longshore_operator.kueue.workload import num_workers, placements
from longshore_operator.pod_view import PodView

WINDOW: Final = timedelta(hours=1)
NUM_STEPS: Final = 3
"""A window has so many steps at least: most pods are wanted in a part of each only."""


def decide_admission(job: RLJob, view: KueueView) -> Admission:
    """Return whether the job is admitted, or why not in the words of Kueue."""
    gpus, replicas = gang(job.spec), job.spec.workers.replicas
    evicted, reserved = view.condition("Evicted"), view.condition("QuotaReserved")
    if view.is_foreign(Identity.of(job).uid):
        text = "Kueue still has the Workload of another job of this name: it goes when that job is deleted"
        return Admission(False, AdmittedReason.QUOTA_PENDING, text, gpus, view.queue)
    recorded = job.status.admission
    if view.version is None and recorded is not None and recorded.admitted and not job.spec.runs_elsewhere:
        return _admitted(job, "admitted by Kueue, which is gone", recorded.workers or replicas, view.queue)
    if view.is_unowned or (view.is_prebuilt and view.mistake):
        text = view.mistake or "the job takes its prebuilt Workload over"
        reason = AdmittedReason.QUEUE_UNAVAILABLE if view.mistake else AdmittedReason.QUOTA_PENDING
        return Admission(False, reason, text, gpus, view.queue)
    if view.is_deactivated:
        return Admission(False, AdmittedReason.DEACTIVATED, _deactivation(view), gpus, view.queue)
    if evicted.get("status") == "True" and reserved.get("status") == "True":
        text = f"Kueue evicted the job ({evicted.get('reason', '')}): {evicted.get('message', '')}"
        return Admission(False, AdmittedReason.EVICTED, text, gpus, view.queue)
    if view.holds("Admitted") and not view.is_active:
        text = "Kueue evicts the job, as its Workload is not active, and then it queues again"
        return Admission(False, AdmittedReason.EVICTED, text, gpus, view.queue)
    if view.holds("Admitted"):
        count = num_workers(job, view)
        part = f" with {count} of {replicas} worker pods" if count < replicas else ""
        text = f"Kueue admitted the job through queue {view.queue}{part}"
        admitted = _admitted(job, text, count, view.queue)
        return replace(admitted, placements=placements(view), num_reward_pods=num_left(view))
    if view.mistake:
        return Admission(False, AdmittedReason.QUEUE_UNAVAILABLE, view.mistake, gpus, view.queue)
    if reserved.get("status") == "True":
        text = "; ".join(("Kueue has reserved the quota and waits for admission checks", *_waiting_checks(view)))
        return Admission(False, AdmittedReason.QUOTA_PENDING, text, gpus, view.queue)
    message = reserved.get("message", "")
    if reserved.get("reason") == "Inadmissible":
        text = (
            f"Kueue says: {message}. Set the label {LABEL_QUEUE} to a LocalQueue of this namespace that is active "
            f"(kubectl get localqueues.{GROUP})"
        )
        return Admission(False, AdmittedReason.QUEUE_UNAVAILABLE, text, gpus, view.queue)
    text = f"Kueue says: {message}" if message else f"the job waits in queue {view.queue} of Kueue"
    return Admission(False, AdmittedReason.QUOTA_PENDING, text, gpus, view.queue)


def _waiting_checks(view: KueueView) -> list[str]:
    """Return what the admission checks that are not ready say."""
    checks = view.status.get("admissionChecks") or ()
    return [f"{one['name']}: {one['message']}" for one in checks if one["state"] != "Ready" and one.get("message")]


def _deactivation(view: KueueView) -> str:
    """Return who made the Workload inactive, and how the job queues again."""
    assert view.workload is not None, "it is inactive"
    name, generation = view.workload["metadata"]["name"], view.workload["metadata"].get("generation")
    target, evicted = view.condition("DeactivationTarget"), view.condition("Evicted")
    reason = str(evicted.get("reason", ""))
    if target.get("status") == "True":
        who = f"Kueue deactivated the job ({target.get('reason')}): {target.get('message')}"
    # The condition stays when a person activates the Workload, which is a newer generation of it.
    elif reason.startswith(DEACTIVATED_DUE_TO) and evicted.get("observedGeneration") == generation:
        who = f"Kueue deactivated the job ({reason.removeprefix(DEACTIVATED_DUE_TO)}): {evicted.get('message')}"
    else:
        who = f"{_manager_of_active(view.workload)} set spec.active of Workload {name} to false"
    return f"{who}; to queue it again, set spec.active of the Workload to true, or suspend and resume the job"


def _manager_of_active(workload: Object) -> str:
    """Return the field manager that wrote `spec.active`, such as kubectl-patch."""
    for entry in workload["metadata"].get("managedFields") or ():
        if "f:active" in entry.get("fieldsV1", {}).get("f:spec", {}):
            return str(entry.get("manager"))
    return "somebody"


def _admitted(job: RLJob, message: str, count: int, queue: str) -> Admission:
    """Return that the job may have so many workers, until it is evicted."""
    workers = job.spec.workers
    extra = None
    if workers.is_elastic:  # Kueue counts single pods. Those that make no whole set are left to it.
        extra = count - workers.least_replicas
        extra -= extra % job.spec.pods_per_step
    return Admission(True, AdmittedReason.ADMITTED, message, gang(job.spec, count), queue, num_extra_workers=extra)


def num_left(view: KueueView) -> int | None:
    """Return for how many reward pods there is quota; None: the job is not admitted, or has none."""
    assignments = (view.status.get("admission") or {}).get("podSetAssignments") or ()
    count = next((one.get("count") for one in assignments if one["name"] == Component.REWARD.value), None)
    return None if count is None else count - _reclaimed(view)


def next_peak(before: RewardPodCounts, wanted: int, left: int, step: int | None, now: datetime) -> dict[str, Any]:
    """Return the fields of the window: a new one begins when one that is over has left no pod without use.

    `step`: the newest that the coordinator reports; None: it does not report yet.
    """
    peak = max(before.peak, wanted)
    goes_on = before.peak_since is not None and (peak < left or not is_over(before, step, now))
    if goes_on or step is None:
        return {"peak": peak, "peak_since": before.peak_since, "peak_step": before.peak_step}
    return {"peak": wanted, "peak_since": rfc3339(now), "peak_step": step}


def is_over(window: RewardPodCounts, step: int | None, now: datetime) -> bool:
    """Return whether a window has lasted long enough."""
    if window.peak_since is None or step is None or step < window.peak_step + NUM_STEPS:
        return False
    return parse_time(window.peak_since) + WINDOW <= now


def reclaimable(
    view: KueueView, window: RewardPodCounts, step: int | None, pods: tuple[PodView, ...], now: datetime
) -> list[Object] | None:
    """Return the new `reclaimablePods` of the Workload; None: it has no more of them than before."""
    left, name = num_left(view), Component.REWARD.value
    if left is None or window.peak >= left or not is_over(window, step, now):
        return None
    if any(pod.component is Component.REWARD and pod.index >= window.peak and pod.holds_resources for pod in pods):
        return None
    others = [one for one in view.status.get("reclaimablePods") or () if one["name"] != name]
    return [*others, {"name": name, "count": _reclaimed(view) + left - window.peak}]


def _reclaimed(view: KueueView) -> int:
    found = view.status.get("reclaimablePods") or ()
    return next((int(one["count"]) for one in found if one["name"] == Component.REWARD.value), 0)
