"""The PodGroup of a job exists while the job is active, and is there before the pods that belong to it."""

from datetime import timedelta

from longshore.api import names
from longshore.api.names import Component
from longshore_operator.context import Context
from longshore_operator.identity import ANNOTATION_FINGERPRINT, Identity
from longshore_operator.outcome import Outcome
from longshore_operator.plan import CreateObject, DeleteObject
from longshore_operator.pod_group.api import APIS
from longshore_operator.pod_group.manifest import pod_group
from longshore_operator.size import num_granted

_NEXT_LOOK = timedelta(seconds=1)
"""PodGroups are read in every pass and not watched."""
_MISTAKE_LOOK = timedelta(seconds=30)
"""Interval of retries, because no event shows that a mistake was corrected."""


def reconcile_pod_group(context: Context) -> Outcome:
    """Take at most one step; the next pass sees what became of it."""
    view, kind = context.observed.pod_group, context.job.spec.scheduling.pod_group
    if view is None or kind is None:
        return Outcome()
    if view.mistake:
        return Outcome(requeue_at=None if context.progress.finished else context.now + _MISTAKE_LOOK)
    resource = APIS[kind].resource
    if view.found is None:
        if not context.progress.active:
            return Outcome()
        wanted = pod_group(context.job, context.config, num_members_of_workers(context))
        return Outcome(actions=(CreateObject(wanted, resource),), requeue_at=context.now + _NEXT_LOOK)
    if view.is_leaving:
        return Outcome(requeue_at=context.now + _NEXT_LOOK if context.progress.active else None)
    if _has_members(context) or (context.progress.active and _is_wanted(context)):
        return Outcome()
    deletion = DeleteObject(names.pod_group(Identity.of(context.job).name), view.found["metadata"]["uid"], resource)
    return Outcome(actions=(deletion,), requeue_at=context.now + _NEXT_LOOK if context.progress.active else None)


def may_create_members(context: Context) -> bool:
    """Whether pods that belong to the PodGroup of the job can be created: it exists, and stays as it is."""
    view = context.observed.pod_group
    if view is None:
        return True
    exists = view.found is not None and not view.is_leaving and not view.mistake
    return exists and (_has_members(context) or _is_wanted(context))


def num_members_of_workers(context: Context) -> int:
    """Worker pods without which the job does not start.

    Where the operator lends worker pods, they can go again, so the job goes on without them. Kueue's assignment stays.
    """
    workers, standing = context.job.spec.workers, context.observed.standing
    if context.observed.kueue is None and standing is not None and standing.num_extra_workers is not None:
        return workers.least_replicas
    return num_granted(context)


def _is_wanted(context: Context) -> bool:
    """Whether the PodGroup is the one that would be made now: some schedulers do not allow to change one."""
    view = context.observed.pod_group
    assert view is not None, "the job wants a PodGroup"
    wanted = pod_group(context.job, context.config, num_members_of_workers(context))
    return bool(view.fingerprint == wanted["metadata"]["annotations"][ANNOTATION_FINGERPRINT])


def _has_members(context: Context) -> bool:
    return any(pod.holds_resources and pod.component is not Component.COORDINATOR for pod in context.observed.pods)
