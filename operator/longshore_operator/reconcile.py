"""All decisions of the operator about a job, without I/O and with time as an argument.

`reconcile` is for jobs that can be read, also while they are being deleted, and `reject` for all others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from longshore.api.mistakes import sentence
from longshore.api.reasons import AdmittedReason, FailedReason, ReadyReason
from longshore.api.rljob import RLJob
from longshore.api.status import (
    FINISHED_PHASES,
    WITHOUT_PODS,
    ConditionType,
    GpuCounts,
    Phase,
    PodCounts,
    RewardPodCounts,
    RLJobStatus,
)
from longshore_kube.times import rfc3339
from longshore_operator.admission.admission_status import reconcile_admission, uncounted_gpus
from longshore_operator.attempts import finish
from longshore_operator.children import reconcile_children
from longshore_operator.config import OperatorConfig
from longshore_operator.context import Admission, Context, Observed
from longshore_operator.elasticity import reconcile_elasticity
from longshore_operator.identity import Identity
from longshore_operator.kueue.kueue_admission import decide_admission
from longshore_operator.kueue.view import KueueView
from longshore_operator.kueue.workload import is_outdated
from longshore_operator.kueue.workload_steps import abandon, reconcile_elsewhere, reconcile_kueue
from longshore_operator.lifecycle import advance, delete_expired, read_progress, reconcile_lifecycle
from longshore_operator.notices import reconcile_notices
from longshore_operator.plan import POD_BATCH, Action, DeletePod, Event, Fact, Outcome, Plan, with_history
from longshore_operator.pod_actions import reconcile_pods
from longshore_operator.pod_group_steps import reconcile_pod_group
from longshore_operator.pod_view import PodView, hold_resources
from longshore_operator.readiness import reconcile_readiness
from longshore_operator.rewards import reconcile_rewards
from longshore_operator.roles import reconcile_roles
from longshore_operator.settings import pod_settings_fingerprint, reconcile_settings, settings_changed
from longshore_operator.size import reconcile_size
from longshore_operator.stored_job import reconcile_stored_status
from longshore_operator.template_rules import refusal

RECONCILERS: Final[tuple[Callable[[Context], Outcome], ...]] = (
    reconcile_settings,
    reconcile_children,
    reconcile_stored_status,
    reconcile_lifecycle,
    reconcile_admission,
    reconcile_elasticity,
    reconcile_size,
    reconcile_rewards,
    reconcile_notices,
    reconcile_pod_group,
    reconcile_pods,
    reconcile_readiness,
    reconcile_kueue,
    reconcile_roles,
)
"""Parts of the decision, in the order of their actions and events.

Pods come after the parts that decide their number and engine size.
"""
_NO_ATTEMPT: Final = -1
_ORPHAN: Final = "orphan"
"""Finalizer of a job that is deleted with `--cascade=orphan`: its pods are meant to stay."""


def reconcile(job: RLJob, observed: Observed, now: datetime, config: OperatorConfig) -> Plan:
    """Decide actions and status that bring `job` from what is `observed` to what its spec asks for.

    Level-triggered: the same input twice gives the same plan, and once a plan is applied the next one is empty until
    something changes or `requeue_at` comes.
    """
    if "deletionTimestamp" in job.metadata:
        return _reconcile_deletion(job, observed, now)
    identity, before = Identity.of(job), job.status
    pods = _without_namesakes(observed.pods, identity.uid)
    if job.spec.runs_elsewhere and _is_elsewhere(job, observed.kueue):
        return _followed(Context(job, observed, now, config, read_progress(before, now), decided=before))
    observed = replace(observed, pods=pods, spec_hash=observed.spec_hash or pod_settings_fingerprint(job.spec))
    if (kueue := observed.kueue) is not None:
        if observed.pod_group is not None and observed.pod_group.keeps_waiting(before):
            kueue = replace(kueue, mistake=kueue.mistake or observed.pod_group.mistake)
        observed = replace(observed, kueue=kueue, admission=decide_admission(job, kueue))
    if (obstacle := observed.obstacle(before)) is not None:
        observed = replace(observed, admission=_stopped(job, observed, *obstacle))
    changed = settings_changed(before.settings, identity.generation, observed.spec_hash)
    starts = changed or before.attempt == 0 or before.phase in WITHOUT_PODS
    if starts and _is_of_other_settings(job, observed, config):
        observed = replace(observed, admission=_to_be_admitted_again(observed.admission))
    progress = advance(
        job.spec,
        before,
        pods,
        now,
        settings_changed=changed,
        admission=observed.admission,
        lost_secrets=observed.lost_secrets,
    )
    if not progress.finished and (refused := _refusal(job, observed, config, starts=starts)) is not None:
        progress = finish(progress, Phase.FAILED, FailedReason.TEMPLATE_REFUSED, refused, now)
    outcome = Outcome(status=RLJobStatus(observed_generation=identity.generation, runtime=before.runtime))
    for reconcile_part in RECONCILERS:
        context = Context(job, observed, now, config, progress, decided=outcome.status, settings_changed=changed)
        outcome = outcome.merge(reconcile_part(context))
    conditions = with_history(outcome.conditions, before.conditions, identity.generation, now)
    status = outcome.status.model_copy(update={"conditions": conditions})
    return Plan((*outcome.actions, *outcome.events), status, outcome.requeue_at, has_all_children=progress.active)


def reject(
    status: RLJobStatus,
    generation: int,
    error: ValidationError,
    pods: tuple[PodView, ...],
    now: datetime,
    kueue: KueueView | None = None,
) -> Plan:
    """Fail a stored job that this version cannot read, or whose name its children cannot have, with a sentence why."""
    deletions, requeue_at = _delete([pod for pod in pods if not (pod.deleting or pod.is_over)], now)
    actions: tuple[Action, ...] = (*deletions, *abandon(kueue, pods))
    if status.phase in FINISHED_PHASES:
        return Plan(actions, requeue_at=requeue_at)
    message = f"{sentence(error)}; correct it in a new job"
    is_template = "template" in error.errors()[0]["loc"]
    reason = FailedReason.TEMPLATE_REFUSED if is_template else FailedReason.INVALID_SPEC
    facts = {
        ConditionType.FAILED: Fact(True, reason, message),
        ConditionType.READY: Fact(False, ReadyReason.FINISHED, "the job has ended"),
    }
    failed = _without_pods(status, facts, generation, now, phase=Phase.FAILED, completion_time=rfc3339(now))
    event = Event("Warning", reason, message, key=f"invalid-{generation}")
    return Plan((*actions, event), failed, requeue_at)


def _reconcile_deletion(job: RLJob, observed: Observed, now: datetime) -> Plan:
    """Stop the pods of a job that is being deleted and that a finalizer of somebody else holds.

    Give back what it holds once they are gone, and do nothing else for it. Without such a finalizer, the garbage
    collector deletes everything that the job owns.
    """
    finalizers = job.metadata.get("finalizers") or ()
    if _ORPHAN in finalizers:
        return Plan()
    identity, status, kueue = Identity.of(job), job.status, observed.kueue
    pods = tuple(pod for pod in observed.pods if pod.owner_uid == identity.uid)
    deletions, requeue_at = _delete([pod for pod in pods if not pod.deleting], now)
    is_own = kueue is not None and not (kueue.is_foreign(identity.uid) or kueue.is_unowned)
    actions: tuple[Action, ...] = (*deletions, *abandon(kueue if is_own else None, pods))
    if status.phase in FINISHED_PHASES or job.spec.runs_elsewhere:
        return Plan(actions, requeue_at=requeue_at)
    stops = "its pods are being stopped" if pods else "its pods have been stopped"
    holders = f"; it goes when its finalizers are removed: {', '.join(finalizers)}" if finalizers else ""
    facts = {ConditionType.READY: Fact(False, ReadyReason.BEING_DELETED, f"the job is being deleted: {stops}{holders}")}
    holds = hold_resources(pods)
    held = {"admission": status.admission, "gpus": status.gpus} if holds else {"admission": None}
    return Plan(actions, _without_pods(status, facts, identity.generation, now, **held), requeue_at)


def _delete(pods: Sequence[PodView], now: datetime) -> tuple[tuple[Action, ...], datetime | None]:
    """Return deletions of the first of these pods, and when to go on with the others."""
    deletions = tuple(DeletePod(pod.name, pod.uid) for pod in pods[:POD_BATCH])
    return deletions, now if len(pods) > POD_BATCH else None


def _without_pods(
    status: RLJobStatus, facts: Mapping[ConditionType, Fact], generation: int, now: datetime, **fields: Any
) -> RLJobStatus:
    """Return the status of a job whose pods all end, with these conditions alone."""
    ended = {
        "observed_generation": generation,
        "restart_time": None,
        **{part: PodCounts() for part in ("coordinator", "workers", "trainers", "judges")},
        "rewards": RewardPodCounts(),
        "gpus": GpuCounts(),
        "conditions": with_history(facts, status.conditions, generation, now),
    }
    return status.model_copy(update=ended | fields)


def _refusal(job: RLJob, observed: Observed, config: OperatorConfig, *, starts: bool) -> str | None:
    """Return why pods of the job are not made. An attempt that runs keeps the GPUs that it has; Kueue counts all."""
    refused = refusal(job.spec, config.allowed)
    if refused is not None or observed.kueue is not None or not starts:
        return refused
    return uncounted_gpus(job, config)


def _is_of_other_settings(job: RLJob, observed: Observed, config: OperatorConfig) -> bool:
    """Return whether the job, which is about to start, was admitted for the GPUs of settings that it had before.

    The operator has missed a suspension, or it would have ended the admission then; or Kueue was faster than its
    owner, who edited it while it waited. What the operator itself admits counts GPUs that the status names, which are
    those of the old settings as long as the attempt lasts.
    """
    admission, status = observed.admission, job.status
    if admission is None or not admission.admitted:
        return False
    if observed.kueue is not None:
        return is_outdated(job, config, observed.kueue)
    return status.attempt > 0 and status.phase not in WITHOUT_PODS


def _to_be_admitted_again(admission: Admission | None) -> Admission:
    """Return that the job waits; it holds its GPUs until its pods are gone."""
    assert admission is not None, "it was admitted"
    message = "the settings have changed since the job was admitted, so it queues again"
    return Admission(False, AdmittedReason.QUOTA_PENDING, message, admission.gpus, admission.queue)


def _is_elsewhere(job: RLJob, view: KueueView | None) -> bool:
    """Return whether a job of MultiKueue has its status from another cluster.

    While it waits, it has it from this operator.
    """
    if view is None or job.status.phase in FINISHED_PHASES:
        return True
    return view.holds("Admitted") and not view.is_foreign(Identity.of(job).uid)


def _followed(context: Context) -> Plan:
    """Plan for a job that another cluster runs: that cluster decides everything, also whether the job has failed."""
    outcome = reconcile_elsewhere(context).merge(delete_expired(context))
    return Plan(outcome.actions, requeue_at=outcome.requeue_at)


def _stopped(job: RLJob, observed: Observed, reason: AdmittedReason, message: str) -> Admission:
    """Return that the job waits, whatever else it was granted. It holds its GPUs until its pods are gone."""
    queue = observed.admission.queue if observed.admission is not None else ""
    recorded = job.status.admission
    return Admission(False, reason, message, recorded.gpus if recorded is not None else {}, queue)


def _without_namesakes(pods: tuple[PodView, ...], uid: str) -> tuple[PodView, ...]:
    """Assign pods of a deleted job of the same name to no attempt, so that they must be gone before anything starts."""
    return tuple(pod if pod.owner_uid == uid else replace(pod, attempt=_NO_ATTEMPT) for pod in pods)
