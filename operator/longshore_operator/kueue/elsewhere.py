"""Jobs that MultiKueue has sent to another cluster: their pods are there, and their status is copied from there."""

from datetime import timedelta
from typing import Final

from longshore.api.status import WITHOUT_PODS
from longshore_kube.times import parse_time
from longshore_operator.context import Context
from longshore_operator.kueue.concern import activate, pods_ready, release
from longshore_operator.outcome import Outcome

_STOP: Final = timedelta(minutes=5)
"""Time to stop there after an eviction here. Older versions of MultiKueue do not ask the other cluster to stop the job:
it is deleted there when the quota is given back here."""


def reconcile_elsewhere(context: Context) -> Outcome:
    """Steps on the Workload; MultiKueue ends it when the job has ended."""
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
