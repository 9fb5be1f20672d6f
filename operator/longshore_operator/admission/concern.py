"""What a job's status says of its admission."""

from datetime import datetime, timedelta

from longshore.api.status import AdmissionStatus, Condition, ConditionStatus, ConditionType, RLJobStatus
from longshore_kube.times import parse_time, rfc3339
from longshore_operator.clock import next_of
from longshore_operator.context import Context
from longshore_operator.observed import Standing
from longshore_operator.outcome import Fact, Outcome
from longshore_operator.plan import Event
from longshore_operator.size import num_granted


def reconcile_admission(context: Context) -> Outcome:
    """The condition Admitted, and the GPUs that the job holds: it keeps them until its last pod has ended."""
    standing, before, progress = context.observed.standing, context.job.status, context.progress
    if standing is None:
        return Outcome(status=RLJobStatus(admission=None))
    holds = progress.active or any(pod.holds_resources for pod in context.observed.pods)
    is_elastic = progress.active and standing.num_extra_workers is not None
    since = before.admission.shrinking_since if before.admission is not None else None
    held = AdmissionStatus(
        admitted=progress.active,
        gpus=dict(standing.gpus) if holds else {},
        position=standing.position if progress.queued else 0,
        queue=_queue(context, standing),
        workers=num_granted(context) if is_elastic else None,
        shrinking_since=(since or rfc3339(context.now)) if is_elastic and standing.is_shrinking else None,
    )
    status = RLJobStatus(admission=held)
    if not (progress.active or progress.queued):
        return Outcome(status=status)
    known = before.condition(ConditionType.ADMITTED)
    fact = _fact(standing, known)
    is_new = fact.holds and (known is None or known.status is not ConditionStatus.TRUE)
    event = Event("Normal", fact.reason, fact.message, f"admitted-{progress.attempt}")
    return Outcome(
        events=(event,) if is_new else (),
        conditions={ConditionType.ADMITTED: fact},
        status=status,
        requeue_at=_shrink_deadline(held, context),
    )


def _queue(context: Context, standing: Standing) -> str:
    """Return the queue of Kueue in which something of the job may be, also when its label is gone.

    A job that only names a queue can leave it by its label.
    """
    view, before = context.observed.kueue, context.job.status.admission
    if view is None or view.workload is not None or not view.mistake:
        return standing.queue
    return before.queue if before is not None and view.version is None else ""


def _shrink_deadline(held: AdmissionStatus, context: Context) -> datetime | None:
    """Return the time by which a job has to have given its worker pods back."""
    if held.shrinking_since is None:
        return None
    timeout = timedelta(seconds=context.config.admission.shrink_timeout_s)
    return next_of(context.now, parse_time(held.shrinking_since) + timeout)


def _fact(standing: Standing, known: Condition | None) -> Fact:
    if standing.message:
        return Fact(standing.admitted, standing.reason, standing.message)
    if known is not None and known.status is ConditionStatus.FALSE:
        return Fact(False, known.reason, known.message)
    return Fact(False, standing.reason, "the job has just arrived in the queue")
