"""What a job's status says of its admission."""

from longshore.api.status import AdmissionStatus, Condition, ConditionStatus, ConditionType, RLJobStatus
from longshore_operator.context import Context
from longshore_operator.observed import Standing
from longshore_operator.outcome import Fact, Outcome
from longshore_operator.plan import Event


def reconcile_admission(context: Context) -> Outcome:
    """The condition Admitted, and the GPUs that the job holds: it keeps them until its last pod has ended."""
    standing, before, progress = context.observed.standing, context.job.status, context.progress
    if standing is None:
        return Outcome(status=RLJobStatus(admission=None))
    holds = progress.active or any(pod.holds_resources for pod in context.observed.pods)
    held = AdmissionStatus(
        admitted=progress.active,
        gpus=dict(standing.gpus) if holds else {},
        position=standing.position if progress.queued else 0,
        queue=standing.queue,
    )
    status = RLJobStatus(admission=held)
    if not (progress.active or progress.queued):
        return Outcome(status=status)
    known = before.condition(ConditionType.ADMITTED)
    fact = _fact(standing, known)
    is_new = fact.holds and (known is None or known.status is not ConditionStatus.TRUE)
    event = Event("Normal", fact.reason, fact.message, f"admitted-{progress.attempt}")
    return Outcome(events=(event,) if is_new else (), conditions={ConditionType.ADMITTED: fact}, status=status)


def _fact(standing: Standing, known: Condition | None) -> Fact:
    if standing.message:
        return Fact(standing.admitted, standing.reason, standing.message)
    if known is not None and known.status is ConditionStatus.FALSE:
        return Fact(False, known.reason, known.message)
    return Fact(False, standing.reason, "the job has just arrived in the queue")
