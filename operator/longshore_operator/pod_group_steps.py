"""The PodGroup of a job: which one it needs, and the next step to it.

It exists while the job is active, and is there before the pods that belong to it.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from fractions import Fraction
from typing import Any

from longshore.api import names
from longshore.api.names import Component
from longshore.api.rljob import RLJob
from longshore.api.scheduling import PodGroupKind
from longshore_kube.quantities import to_quantity
from longshore_operator.config import OperatorConfig
from longshore_operator.context import Context
from longshore_operator.identity import ANNOTATION_FINGERPRINT, Identity, fingerprint
from longshore_operator.plan import CreateObject, DeleteObject, Outcome
from longshore_operator.pod_group_api import APIS
from longshore_operator.pod_sets import PodSet, pod_sets, requests
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
    """Return whether pods that belong to the PodGroup of the job can be created: it exists, and stays as it is."""
    view = context.observed.pod_group
    if view is None:
        return True
    exists = view.found is not None and not view.is_leaving and not view.mistake
    return exists and (_has_members(context) or _is_wanted(context))


def num_members_of_workers(context: Context) -> int:
    """Return the number of worker pods without which the job does not start.

    Where the operator lends worker pods, they can go again, so the job goes on without them. Kueue's assignment stays.
    """
    workers, admission = context.job.spec.workers, context.observed.admission
    if context.observed.kueue is None and admission is not None and admission.num_extra_workers is not None:
        return workers.least_replicas
    return num_granted(context)


def _is_wanted(context: Context) -> bool:
    """Return whether the PodGroup is the one that would be made now: some schedulers do not allow to change one."""
    view = context.observed.pod_group
    assert view is not None, "the job wants a PodGroup"
    wanted = pod_group(context.job, context.config, num_members_of_workers(context))
    return bool(view.fingerprint == wanted["metadata"]["annotations"][ANNOTATION_FINGERPRINT])


def _has_members(context: Context) -> bool:
    return any(pod.holds_resources and pod.component is not Component.COORDINATOR for pod in context.observed.pods)


def pod_group(job: RLJob, config: OperatorConfig, num_workers: int) -> dict[str, Any]:
    """Build the PodGroup of a job that needs so many workers to start.

    The coordinator is not a member: the other pods are created when it has an address, and it holds no GPU.
    """
    kind, identity = job.spec.scheduling.pod_group, Identity.of(job)
    assert kind is not None, "the job wants a PodGroup"
    members = {
        one.name: (num_workers if one.component is Component.WORKER else one.num_least, one)
        for one in pod_sets(job, config)
        if one.component is not Component.COORDINATOR
    }
    spec = _spec(job, kind, list(members.values()))
    metadata = identity.metadata(names.pod_group(identity.name))
    metadata["annotations"] = {ANNOTATION_FINGERPRINT: fingerprint(spec)}
    api = APIS[kind]
    return {"apiVersion": f"{api.group}/{api.version}", "kind": "PodGroup", "metadata": metadata, "spec": spec}


def _spec(job: RLJob, kind: PodGroupKind, members: list[tuple[int, PodSet]]) -> dict[str, Any]:
    count = sum(num for num, _ in members)
    if kind is PodGroupKind.KUBERNETES:
        return {"schedulingPolicy": {"gang": {"minCount": count}}}
    spec: dict[str, Any] = {"minMember": count, "minResources": _total(members)}
    if kind is PodGroupKind.VOLCANO:
        worker = next(one.pod["spec"] for _, one in members if one.component is Component.WORKER)
        priority_class = worker.get("priorityClassName")
        queue = job.spec.scheduling.queue
        spec |= {"queue": queue} if queue is not None else {}
        spec |= {"priorityClassName": priority_class} if priority_class else {}
    return spec


def _total(members: Iterable[tuple[int, PodSet]]) -> dict[str, str]:
    total: dict[str, Fraction] = defaultdict(Fraction)
    for count, one in members:
        for resource, amount in requests(one.pod["spec"]).items():
            total[resource] += count * amount
    return {resource: to_quantity(amount) for resource, amount in sorted(total.items()) if amount}
