"""The admission in the status of a job, and GPUs of its pods that the admission does not count."""

from datetime import datetime, timedelta
from typing import Final

from longshore.api.names import Component
from longshore.api.pods import Workers
from longshore.api.rljob import RLJob
from longshore.api.status import AdmissionStatus, Condition, ConditionStatus, ConditionType, RLJobStatus
from longshore_kube.times import parse_time, rfc3339
from longshore_operator.config import OperatorConfig
from longshore_operator.context import Admission, Context
from longshore_operator.identity import Identity
from longshore_operator.plan import Event, Fact, Outcome, next_of
from longshore_operator.pod_sets import PodSet, pod_sets, requests
from longshore_operator.pod_view import hold_resources
from longshore_operator.size import num_granted

_DEVICE_CLASS: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of the resources by which pods request devices of a DeviceClass without a ResourceClaim."""


def reconcile_admission(context: Context) -> Outcome:
    """Decide the condition Admitted, and the GPUs that the job holds until its last pod has ended."""
    admission, before, progress = context.observed.admission, context.job.status, context.progress
    if admission is None:
        return Outcome(status=RLJobStatus(admission=None))
    holds = progress.active or hold_resources(context.observed.pods)
    is_elastic = progress.active and admission.num_extra_workers is not None
    since = before.admission.shrinking_since if before.admission is not None else None
    held = AdmissionStatus(
        admitted=progress.active,
        gpus=dict(admission.gpus) if holds else {},
        position=admission.position if progress.queued else 0,
        queue=_queue(context, admission),
        workers=num_granted(context) if is_elastic else None,
        shrinking_since=(since or rfc3339(context.now)) if is_elastic and admission.is_shrinking else None,
    )
    status = RLJobStatus(admission=held)
    if not (progress.active or progress.queued):
        return Outcome(status=status)
    known = before.condition(ConditionType.ADMITTED)
    fact = _fact(admission, known)
    is_new = fact.holds and (known is None or known.status is not ConditionStatus.TRUE)
    event = Event("Normal", fact.reason, fact.message, f"admitted-{progress.attempt}")
    return Outcome(
        events=(event,) if is_new else (),
        conditions={ConditionType.ADMITTED: fact},
        status=status,
        requeue_at=_shrink_deadline(held, context),
    )


def _queue(context: Context, admission: Admission) -> str:
    """Return the queue of Kueue in which something of the job may be, also when its label is gone.

    A job that only names a queue can leave it by its label.
    """
    view, before = context.observed.kueue, context.job.status.admission
    if view is None or view.workload is not None or not view.mistake:
        return admission.queue
    return before.queue if before is not None and view.version is None else ""


def _shrink_deadline(held: AdmissionStatus, context: Context) -> datetime | None:
    """Return the time by which a job has to have given its worker pods back."""
    if held.shrinking_since is None:
        return None
    timeout = timedelta(seconds=context.config.admission.shrink_timeout_s)
    return next_of(context.now, parse_time(held.shrinking_since) + timeout)


def _fact(admission: Admission, known: Condition | None) -> Fact:
    if admission.message:
        return Fact(admission.admitted, admission.reason, admission.message)
    if known is not None and known.status is ConditionStatus.FALSE:
        return Fact(False, known.reason, known.message)
    return Fact(False, admission.reason, "the job has just arrived in the queue")


def uncounted_gpus(job: RLJob, config: OperatorConfig) -> str | None:
    """Return a sentence about the first pod that requests limited GPUs which are not counted; None if none does."""
    limits = config.admission.limits
    if limits is None:
        return None
    namespace = Identity.of(job).namespace
    for one in pod_sets(job, config):
        field, counted = _counted(job, one)
        if one.pod["spec"].get("resourceClaims"):
            return (
                f"spec.{field}.template.spec.resourceClaims: devices of ResourceClaims are not counted against the "
                "limits of GPUs; remove them, and set gpusPerPod and gpuResourceName"
            )
        for resource, amount in requests(one.pod["spec"]).items():
            own = counted.gpus_per_pod if counted is not None and resource == counted.gpu_resource_name else 0
            if not limits.demand(namespace, {resource: 1}):
                if not resource.startswith(_DEVICE_CLASS):
                    continue
                return (
                    f"spec.{field}: a pod requests {resource}, devices of a DeviceClass that are not counted against "
                    "the limits of GPUs; request GPUs by a resource that has a limit"
                )
            if amount > own:
                return (
                    f"spec.{field}: a pod requests {float(amount - own):g} {resource} besides gpusPerPod, and only "
                    "gpusPerPod of workers, trainerWorkers and judge pools is counted against the limits; remove them "
                    "from resources and template"
                )
    return None


def _counted(job: RLJob, one: PodSet) -> tuple[str, Workers | None]:
    """Return the field that describes pods, and the options whose GPUs are counted, if it has any."""
    spec = job.spec
    match one.component:
        case Component.COORDINATOR:
            return "coordinator", None
        case Component.REWARD:
            return "reward", None
        case Component.WORKER:
            return "workers", spec.workers
        case Component.TRAINER:
            return "trainerWorkers", spec.trainer_workers
        case Component.ENVIRONMENT:
            return f"environments[{spec.environments[int(one.name.partition('-')[2])].name}].pods", None
        case Component.JUDGE:
            function = spec.reward.functions[int(one.name.partition("-")[2])]
            return f"reward.functions[{function.name}].judge.pool", function.pool
