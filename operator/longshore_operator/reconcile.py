"""`reconcile`: all decisions of the operator, without I/O and with time as an argument."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Final

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
from longshore_operator.admission.concern import reconcile_admission
from longshore_operator.admission.uncounted import uncounted_gpus
from longshore_operator.attempts import finish
from longshore_operator.children import reconcile_children
from longshore_operator.context import Context
from longshore_operator.converge import reconcile_pods
from longshore_operator.deletion import reconcile_deletion
from longshore_operator.elasticity import reconcile_elasticity
from longshore_operator.identity import Identity
from longshore_operator.kueue.concern import abandon, reconcile_kueue
from longshore_operator.kueue.elsewhere import reconcile_elsewhere
from longshore_operator.kueue.standing import standing as standing_in_queue
from longshore_operator.kueue.view import KueueView
from longshore_operator.kueue.workload import is_outdated
from longshore_operator.lifecycle import advance, expired, reconcile_lifecycle, recorded_progress
from longshore_operator.notices import reconcile_notices
from longshore_operator.observed import Observed, PodView, Standing
from longshore_operator.outcome import Fact, Outcome, with_history
from longshore_operator.plan import POD_BATCH, Action, DeletePod, Event, OperatorConfig, Plan
from longshore_operator.pod_group.concern import reconcile_pod_group
from longshore_operator.projection import reconcile_roles
from longshore_operator.readiness import reconcile_readiness
from longshore_operator.rewards import reconcile_rewards
from longshore_operator.settings import pod_settings_fingerprint, reconcile_settings, settings_changed
from longshore_operator.size import reconcile_size
from longshore_operator.stored_status import reconcile_stored_status
from longshore_operator.template_rules import refusal

CONCERNS: Final[tuple[Callable[[Context], Outcome], ...]] = (
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
"""Concerns in the order of their actions and events.

Pods come after the concerns that decide their number and engine size.
"""
_NO_ATTEMPT: Final = -1


def reconcile(job: RLJob, observed: Observed, now: datetime, config: OperatorConfig) -> Plan:
    """Decide actions and status that bring `job` from what is `observed` to what its spec asks for.

    Level-triggered: the same input twice gives the same plan, and once a plan is applied the next one is empty until
    something changes or `requeue_at` comes.
    """
    if "deletionTimestamp" in job.metadata:
        return reconcile_deletion(job, observed, now)
    identity, before = Identity.of(job), job.status
    pods = _without_namesakes(observed.pods, identity.uid)
    if job.spec.runs_elsewhere and _is_elsewhere(job, observed.kueue):
        return _followed(Context(job, observed, now, config, recorded_progress(before, now), decided=before))
    observed = replace(observed, pods=pods, spec_hash=observed.spec_hash or pod_settings_fingerprint(job.spec))
    if observed.kueue is not None:
        observed = replace(observed, standing=standing_in_queue(job, observed.kueue))
    if (obstacle := observed.obstacle(before)) is not None:
        observed = replace(observed, standing=_stopped(job, observed, *obstacle))
    changed = settings_changed(before.settings, identity.generation, observed.spec_hash)
    starts = changed or before.attempt == 0 or before.phase in WITHOUT_PODS
    if starts and _is_of_other_settings(job, observed, config):
        observed = replace(observed, standing=_to_be_admitted_again(observed.standing))
    progress = advance(
        job.spec,
        before,
        pods,
        now,
        settings_changed=changed,
        standing=observed.standing,
        lost_secrets=observed.lost_secrets,
    )
    if not progress.finished and (refused := _refusal(job, observed, config, starts=starts)) is not None:
        progress = finish(progress, Phase.FAILED, FailedReason.TEMPLATE_REFUSED, refused, now)
    outcome = Outcome(status=RLJobStatus(observed_generation=identity.generation, runtime=before.runtime))
    for concern in CONCERNS:
        context = Context(job, observed, now, config, progress, decided=outcome.status, settings_changed=changed)
        outcome = outcome.joined(concern(context))
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
    leaving = [DeletePod(pod.name, pod.uid) for pod in pods if not (pod.deleting or pod.is_over)]
    deletions: tuple[Action, ...] = (*leaving[:POD_BATCH], *abandon(kueue, pods))
    requeue_at = now if len(leaving) > POD_BATCH else None
    if status.phase in FINISHED_PHASES:
        return Plan(deletions, requeue_at=requeue_at)
    message = f"{sentence(error)}; correct it in a new job"
    is_template = "template" in error.errors()[0]["loc"]
    reason = FailedReason.TEMPLATE_REFUSED if is_template else FailedReason.INVALID_SPEC
    facts = {
        ConditionType.FAILED: Fact(True, reason, message),
        ConditionType.READY: Fact(False, ReadyReason.FINISHED, "the job has ended"),
    }
    failed = status.model_copy(
        update={
            "phase": Phase.FAILED,
            "observed_generation": generation,
            "completion_time": rfc3339(now),
            "restart_time": None,
            "coordinator": PodCounts(),
            "workers": PodCounts(),
            "trainers": PodCounts(),
            "rewards": RewardPodCounts(),
            "judges": PodCounts(),
            "gpus": GpuCounts(),
            "conditions": with_history(facts, status.conditions, generation, now),
        }
    )
    event = Event("Warning", reason, message, key=f"invalid-{generation}")
    return Plan((*deletions, event), failed, requeue_at)


def _refusal(job: RLJob, observed: Observed, config: OperatorConfig, *, starts: bool) -> str | None:
    """Return why pods of the job are not made. An attempt that runs keeps the GPUs that it has; Kueue counts all."""
    refused = refusal(job.spec, config.allowed)
    if refused is not None or observed.kueue is not None or not starts:
        return refused
    return uncounted_gpus(job, config)


def _is_of_other_settings(job: RLJob, observed: Observed, config: OperatorConfig) -> bool:
    """Whether the job, which is about to start, was admitted for the GPUs of settings that it had before.

    The operator has missed a suspension, or it would have ended the admission then; or Kueue was faster than its
    owner, who edited it while it waited. What the operator itself admits counts GPUs that the status names, which are
    those of the old settings as long as the attempt lasts.
    """
    standing, status = observed.standing, job.status
    if standing is None or not standing.admitted:
        return False
    if observed.kueue is not None:
        return is_outdated(job, config, observed.kueue)
    return status.attempt > 0 and status.phase not in WITHOUT_PODS


def _to_be_admitted_again(standing: Standing | None) -> Standing:
    """Return that the job waits; it holds its GPUs until its pods are gone."""
    assert standing is not None, "it was admitted"
    message = "the settings have changed since the job was admitted, so it queues again"
    return Standing(False, AdmittedReason.QUOTA_PENDING, message, standing.gpus, standing.queue)


def _is_elsewhere(job: RLJob, view: KueueView | None) -> bool:
    """Whether a job of MultiKueue has its status from another cluster. While it waits, it has it from this operator."""
    if view is None or job.status.phase in FINISHED_PHASES:
        return True
    return view.holds("Admitted") and not view.is_foreign(Identity.of(job).uid)


def _followed(context: Context) -> Plan:
    """Plan for a job that another cluster runs: that cluster decides everything, also whether the job has failed."""
    outcome = reconcile_elsewhere(context).joined(expired(context))
    return Plan(outcome.actions, requeue_at=outcome.requeue_at)


def _stopped(job: RLJob, observed: Observed, reason: AdmittedReason, message: str) -> Standing:
    """Return that the job waits, whatever else it was granted. It holds its GPUs until its pods are gone."""
    queue = observed.standing.queue if observed.standing is not None else ""
    recorded = job.status.admission
    return Standing(False, reason, message, recorded.gpus if recorded is not None else {}, queue)


def _without_namesakes(pods: tuple[PodView, ...], uid: str) -> tuple[PodView, ...]:
    """Assign pods of a deleted job of the same name to no attempt, so that they must be gone before anything starts."""
    return tuple(pod if pod.owner_uid == uid else replace(pod, attempt=_NO_ATTEMPT) for pod in pods)
