"""Whether a job with a queue may have pods, by its Workload: the first of Kueue's conditions that applies."""

from dataclasses import replace

from longshore.api.reasons import AdmittedReason
from longshore.api.rljob import RLJob
from longshore_operator.admission.demand import gang
from longshore_operator.identity import Identity
from longshore_operator.kueue.reclaim import num_left
from longshore_operator.kueue.view import DEACTIVATED_DUE_TO, GROUP, LABEL_QUEUE, KueueView, Object
from longshore_operator.kueue.workload import num_workers, placements
from longshore_operator.observed import Standing


def standing(job: RLJob, view: KueueView) -> Standing:
    """Return whether the job is admitted, or why not in the words of Kueue."""
    gpus, replicas = gang(job.spec), job.spec.workers.replicas
    evicted, reserved = view.condition("Evicted"), view.condition("QuotaReserved")
    if view.is_foreign(Identity.of(job).uid):
        text = "Kueue still has the Workload of another job of this name: it goes when that job is deleted"
        return Standing(False, AdmittedReason.QUOTA_PENDING, text, gpus, view.queue)
    recorded = job.status.admission
    if view.version is None and recorded is not None and recorded.admitted and not job.spec.runs_elsewhere:
        return _admitted(job, "admitted by Kueue, which is gone", recorded.workers or replicas, view.queue)
    if view.is_unowned or (view.is_prebuilt and view.mistake):
        text = view.mistake or "the job takes its prebuilt Workload over"
        reason = AdmittedReason.QUEUE_UNAVAILABLE if view.mistake else AdmittedReason.QUOTA_PENDING
        return Standing(False, reason, text, gpus, view.queue)
    if view.is_deactivated:
        return Standing(False, AdmittedReason.DEACTIVATED, _deactivation(view), gpus, view.queue)
    if evicted.get("status") == "True" and reserved.get("status") == "True":
        text = f"Kueue evicted the job ({evicted.get('reason', '')}): {evicted.get('message', '')}"
        return Standing(False, AdmittedReason.EVICTED, text, gpus, view.queue)
    if view.holds("Admitted") and not view.is_active:
        text = "Kueue evicts the job, as its Workload is not active, and then it queues again"
        return Standing(False, AdmittedReason.EVICTED, text, gpus, view.queue)
    if view.holds("Admitted"):
        count = num_workers(job, view)
        part = f" with {count} of {replicas} worker pods" if count < replicas else ""
        text = f"Kueue admitted the job through queue {view.queue}{part}"
        admitted = _admitted(job, text, count, view.queue)
        return replace(admitted, placements=placements(view), num_reward_pods=num_left(view))
    if view.mistake:
        return Standing(False, AdmittedReason.QUEUE_UNAVAILABLE, view.mistake, gpus, view.queue)
    if reserved.get("status") == "True":
        text = "; ".join(("Kueue has reserved the quota and waits for admission checks", *_waiting_checks(view)))
        return Standing(False, AdmittedReason.QUOTA_PENDING, text, gpus, view.queue)
    message = reserved.get("message", "")
    if reserved.get("reason") == "Inadmissible":
        text = (
            f"Kueue says: {message}. Set the label {LABEL_QUEUE} to a LocalQueue of this namespace that is active "
            f"(kubectl get localqueues.{GROUP})"
        )
        return Standing(False, AdmittedReason.QUEUE_UNAVAILABLE, text, gpus, view.queue)
    text = f"Kueue says: {message}" if message else f"the job waits in queue {view.queue} of Kueue"
    return Standing(False, AdmittedReason.QUOTA_PENDING, text, gpus, view.queue)


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


def _admitted(job: RLJob, message: str, count: int, queue: str) -> Standing:
    """Return that the job may have so many workers, until it is evicted."""
    workers = job.spec.workers
    extra = count - workers.least_replicas if workers.is_elastic else None
    return Standing(True, AdmittedReason.ADMITTED, message, gang(job.spec, count), queue, num_extra_workers=extra)
