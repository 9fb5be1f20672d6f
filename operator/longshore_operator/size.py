"""How many worker pods an elastic job has: the admission grants a number, and the coordinator takes it over.

Pods come before the coordinator is asked to use them, and go after it has acknowledged that it does without them:

    granted       the admission's decision (`status.admission.workers`)
    asked         what the coordinator is to run with (`status.assignment.size`): fewer pods at once, and more when
                  all of them are ready
    acknowledged  what it runs with (`status.runtime.size`): the same object, once it has been carried out

Pods beyond those that the job needs may be lost for good, or never find a node. After `PATIENCE` the job is asked to do
without them; they are still granted, so it takes them when they are there.
"""

from datetime import datetime, timedelta
from typing import Final

from longshore.api.names import Component
from longshore.api.reasons import EventReason, ResizingReason
from longshore.api.rljob import RLJob
from longshore.api.runtime_status import JobSize
from longshore.api.status import Condition, ConditionStatus, ConditionType, RLJobStatus
from longshore_kube.times import parse_time
from longshore_operator.context import Context
from longshore_operator.plan import Event, Fact, Outcome, next_of
from longshore_operator.pod_view import PodView

PATIENCE: Final = timedelta(minutes=2)
"""Time for which a job waits for pods that it does not need and that have no node.

To go on without them costs it the start of its engines and the steps since its newest checkpoint.
"""
START_PATIENCE: Final = timedelta(minutes=10)
"""Time for which a job waits for a pod that has a node: it may be pulling its image."""


def is_acknowledged(status: RLJobStatus) -> bool:
    """Return whether the coordinator of the attempt runs with the size that it was asked to."""
    runtime = status.runtime
    return runtime is not None and runtime.attempt == status.attempt > 0 and runtime.size == status.assignment.size


def num_in_use(job: RLJob) -> int:
    """Return the number of worker pods that the coordinator of the attempt may be using."""
    asked = job.status.assignment.size
    if asked is None:
        return job.spec.workers.replicas
    return asked.workers if is_acknowledged(job.status) else asked.held


def num_granted(context: Context) -> int:
    """Return the number of worker pods that the job may have."""
    workers, admission = context.job.spec.workers, context.observed.admission
    if admission is None or admission.num_extra_workers is None:
        return workers.replicas
    return workers.least_replicas + admission.num_extra_workers


def num_wanted(context: Context) -> int:
    """Return the number of worker pods that shall exist."""
    asked, replicas = context.decided.assignment.size, context.job.spec.workers.replicas
    if asked is None:
        return replicas
    return max(num_granted(context), asked.workers if _acknowledges(context, asked) else asked.held)


def num_needed(context: Context) -> int:
    """Return the number of worker pods without which the job is not ready."""
    asked = context.decided.assignment.size
    return asked.workers if asked is not None else context.job.spec.workers.replicas


def next_size(context: Context, epoch: int) -> JobSize | None:
    """Return the size that the coordinator is asked to run with.

    It is the same object while nothing changes, and else one of this epoch.
    """
    asked, granted = context.job.status.assignment.size, num_granted(context)
    replicas = context.job.spec.workers.replicas
    if not context.progress.active:
        return asked
    current = asked or JobSize(epoch=0, workers=replicas, held=replicas)
    if not context.has_coordinator:
        is_same = (current.workers, current.held) == (granted, granted)
        return asked if is_same else JobSize(epoch=epoch, workers=granted, held=granted)
    has_answered = _acknowledges(context, asked)
    if granted < current.workers:
        held = current.workers if has_answered else current.held
        return JobSize(epoch=epoch, workers=granted, held=held)
    if granted > current.workers and has_answered and _num_usable(context) >= granted:
        return JobSize(epoch=epoch, workers=granted, held=granted)
    if has_answered and (usable := _num_without_missing(context, current.workers)) < current.workers:
        return JobSize(epoch=epoch, workers=usable, held=current.workers)
    return asked


def reconcile_size(context: Context) -> Outcome:
    """Return the condition Resizing, and an event when a change begins and when it has ended."""
    before = context.job.status.condition(ConditionType.RESIZING)
    fact = _fact(context)
    deadline = _patience_ends(context) if fact is not None else None
    return Outcome(
        events=_events(before, fact, context),
        conditions={ConditionType.RESIZING: fact},
        requeue_at=next_of(context.now, deadline),
    )


def _acknowledges(context: Context, asked: JobSize | None) -> bool:
    return context.runtime is not None and context.runtime.size == asked


def _num_usable(context: Context) -> int:
    """Return the number of worker pods that are ready, from the first without a gap."""
    ready = {pod.index for pod in _ready_workers(context)}
    return next(index for index in range(len(ready) + 1) if index not in ready)


def _ready_workers(context: Context) -> list[PodView]:
    return [pod for pod in context.pods if pod.component is Component.WORKER and pod.ready]


def _num_without_missing(context: Context, num_workers: int) -> int:
    """Return the number of worker pods with which the job goes on, of those that it is asked to run with."""
    deadline = _patience_ends(context)
    if deadline is None or deadline > context.now:
        return num_workers
    spec, usable = context.job.spec, _num_usable(context)
    return usable - (usable - spec.workers.least_replicas) % spec.pods_per_step


def _patience_ends(context: Context) -> datetime | None:
    """Return the time at which a job with all pods that it needs stops waiting for the others.

    None: it does not wait. Pods become ready one after the other, so the wait starts again with each.
    """
    admission, ready = context.observed.admission, context.job.status.condition(ConditionType.READY)
    is_lent = admission is not None and admission.num_extra_workers is not None
    usable = _num_usable(context)
    if not is_lent or usable < context.job.spec.workers.least_replicas or ready is None:
        return None
    if ready.status is not ConditionStatus.FALSE:
        return None
    since = [pod.ready_since for pod in _ready_workers(context) if pod.index < usable and pod.ready_since]
    missing = next((pod for pod in context.pods if (pod.component, pod.index) == (Component.WORKER, usable)), None)
    patience = START_PATIENCE if missing is not None and missing.scheduled else PATIENCE
    return max(map(parse_time, (ready.last_transition_time, *since))) + patience


def _fact(context: Context) -> Fact | None:
    workers, asked = context.job.spec.workers, context.decided.assignment.size
    admission, runtime = context.observed.admission, context.runtime
    if (
        not context.progress.active
        or not workers.is_elastic
        or admission is None
        or admission.num_extra_workers is None
    ):
        return None
    granted = num_granted(context)
    limits = f"it needs {workers.least_replicas} and takes {workers.replicas} at most"
    if admission.is_shrinking:
        message = f"the job goes on with {granted} worker pods from its next step on; {limits}"
        return Fact(True, ResizingReason.SHRINKING, message)
    running = asked.workers if asked is not None else workers.replicas
    if runtime is not None and (running < granted or runtime.size != asked):
        message = f"the job goes on with {granted} worker pods when they are ready, from its next step on; {limits}"
        return Fact(True, ResizingReason.GROWING, "; ".join((message, *_obstacles(context))))
    return Fact(False, ResizingReason.AS_GRANTED, f"the job has {granted} worker pods; {limits}")


def _obstacles(context: Context) -> list[str]:
    """Return why the first pod that is not there yet has no node, if the scheduler refuses it."""
    refused = (pod for pod in context.pods if pod.component is Component.WORKER and pod.unschedulable is not None)
    return [f"{pod.name}: {pod.unschedulable}" for pod in refused if not pod.scheduled][:1]


def _events(before: Condition | None, fact: Fact | None, context: Context) -> tuple[Event, ...]:
    if fact is None or before is None:
        return ()
    key = f"size-{context.progress.attempt}-{context.decided.assignment.epoch}"
    if fact.holds and (before.status is ConditionStatus.FALSE or before.reason != fact.reason):
        return (Event("Normal", fact.reason, fact.message, key),)
    if not fact.holds and before.status is ConditionStatus.TRUE:
        return (Event("Normal", EventReason.RESIZED, fact.message, key),)
    return ()
