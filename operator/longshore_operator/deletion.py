"""A job that is being deleted and still exists, because a finalizer of somebody else holds it."""

from datetime import datetime
from typing import Final

from longshore.api.reasons import ReadyReason
from longshore.api.rljob import RLJob
from longshore.api.status import FINISHED_PHASES, ConditionType, GpuCounts, PodCounts, RewardPodCounts
from longshore_operator.identity import Identity
from longshore_operator.kueue.concern import abandon
from longshore_operator.observed import Observed
from longshore_operator.outcome import Fact, with_history
from longshore_operator.plan import POD_BATCH, Action, DeletePod, Plan

_ORPHAN: Final = "orphan"
"""Finalizer of a job that is deleted with `--cascade=orphan`: its pods are meant to stay."""


def reconcile_deletion(job: RLJob, observed: Observed, now: datetime) -> Plan:
    """Stop the pods, give back what the job holds once they are gone, and do nothing else for it.

    Without such a finalizer, the garbage collector deletes everything that the job owns.
    """
    finalizers = job.metadata.get("finalizers") or ()
    if _ORPHAN in finalizers:
        return Plan()
    identity, status, kueue = Identity.of(job), job.status, observed.kueue
    pods = tuple(pod for pod in observed.pods if pod.owner_uid == identity.uid)
    leaving = [DeletePod(pod.name, pod.uid) for pod in pods if not pod.deleting]
    is_own = kueue is not None and not (kueue.is_foreign(identity.uid) or kueue.is_unowned)
    actions: tuple[Action, ...] = (*leaving[:POD_BATCH], *abandon(kueue if is_own else None, pods))
    requeue_at = now if len(leaving) > POD_BATCH else None
    if status.phase in FINISHED_PHASES or job.spec.runs_elsewhere:
        return Plan(actions, requeue_at=requeue_at)
    holds = any(pod.holds_resources for pod in pods)
    stops = "its pods are being stopped" if pods else "its pods have been stopped"
    holders = f"; it goes when its finalizers are removed: {', '.join(finalizers)}" if finalizers else ""
    facts = {ConditionType.READY: Fact(False, ReadyReason.BEING_DELETED, f"the job is being deleted: {stops}{holders}")}
    stopped = status.model_copy(
        update={
            "observed_generation": identity.generation,
            "restart_time": None,
            "admission": status.admission if holds else None,
            "coordinator": PodCounts(),
            "workers": PodCounts(),
            "trainers": PodCounts(),
            "rewards": RewardPodCounts(),
            "judges": PodCounts(),
            "gpus": status.gpus if holds else GpuCounts(),
            "conditions": with_history(facts, status.conditions, identity.generation, now),
        }
    )
    return Plan(actions, stopped, requeue_at)
