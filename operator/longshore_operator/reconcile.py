"""`reconcile`: the whole of the operator's decisions, without I/O and without a clock of its own."""

from dataclasses import replace
from datetime import datetime, timedelta

from pydantic import ValidationError

from longshore.api.mistakes import sentence
from longshore.api.names import Component
from longshore.api.pods import PodOptions
from longshore.api.rljob import RLJob
from longshore.api.status import (
    FINISHED_PHASES,
    Condition,
    ConditionStatus,
    ConditionType,
    Phase,
    PodCounts,
    RewardPodCounts,
    RLJobStatus,
)
from longshore_operator import children, conditions, projection, template
from longshore_operator.clock import parse, timestamp
from longshore_operator.conditions import Fact
from longshore_operator.converge import Wanted, converge, num_peers
from longshore_operator.elasticity import Elasticity, assign, limits
from longshore_operator.fingerprint import pod_settings_fingerprint
from longshore_operator.identity import Identity
from longshore_operator.lifecycle import Progress, advance, deadline_of, describe_end, finish
from longshore_operator.notices import notice_events
from longshore_operator.observed import Observed, PodView
from longshore_operator.plan import Action, CreateOnce, DeleteJob, DeletePod, Event, OperatorConfig, Plan
from longshore_operator.rewards import size_rewards

_NO_ATTEMPT = -1


def reconcile(job: RLJob, observed: Observed, now: datetime, config: OperatorConfig) -> Plan:
    """Actions and status that bring `job` from what is `observed` to what its spec asks for.

    Level-triggered: the same input twice gives the same plan, and once a plan is applied the next one is empty until
    something changes or `requeue_at` comes. A job that is being deleted is left to the garbage collector.
    """
    if "deletionTimestamp" in job.metadata:
        return Plan()
    observed = _without_namesakes(observed, Identity.of(job).uid)
    progress = _progress(job, observed, now, config)
    elasticity = assign(job, progress, observed.told_rejection)
    rewards = size_rewards(job, progress, now)
    wanted = Wanted(elasticity.assignment.baseline.tp_size, rewards.counts.desired)
    work = converge(job, config, progress, observed.pods, wanted, now)
    acknowledged = projection.acknowledged(job.status.runtime, progress)
    status = _status(job, observed, progress, elasticity, acknowledged, rewards.counts, now)
    actions: list[Action] = []
    if not progress.finished and not progress.suspended:
        actions += _child_actions(job, observed, config)
    actions += [*work.delete, *work.create]
    actions += projection.label_pods(observed.pods, progress.attempt, acknowledged)
    actions += [*progress.events, *elasticity.events, *rewards.events]
    actions += notice_events(job.status, observed.told_notice)
    actions += _transitions(job.status, status, observed, progress)
    expiry = _expiry(job, progress)
    if expiry is not None and expiry <= now:
        actions.append(DeleteJob(Identity.of(job).uid))
    return Plan(tuple(actions), status, _requeue_at(job, progress, (work.wake_at, rewards.wake_at, expiry), now))


def reject(
    status: RLJobStatus, generation: int, error: ValidationError, pods: tuple[PodView, ...], now: datetime
) -> Plan:
    """A stored spec that this version cannot read: the job fails with the sentence that says why."""
    if status.phase in FINISHED_PHASES:
        return Plan()
    message = f"{sentence(error, 'spec')}; create the job anew with a corrected spec"
    fact = {
        ConditionType.FAILED: Fact(ConditionStatus.TRUE, "InvalidSpec", message),
        ConditionType.READY: Fact(ConditionStatus.FALSE, "Finished", "the job has ended"),
    }
    failed = status.model_copy(
        update={
            "phase": Phase.FAILED,
            "observed_generation": generation,
            "completion_time": timestamp(now),
            "restart_time": None,
            "conditions": conditions.with_history(fact, status.conditions, generation, now),
        }
    )
    deletions = tuple(DeletePod(pod.name, pod.uid) for pod in pods if not (pod.deleting or pod.terminal))
    return Plan((*deletions, Event("Warning", "InvalidSpec", message, key=f"invalid-{generation}")), failed)


def _without_namesakes(observed: Observed, uid: str) -> Observed:
    """Pods of a deleted job of the same name belong to no attempt: they must be gone before anything starts."""
    if all(pod.owner_uid == uid for pod in observed.pods):
        return observed
    pods = tuple(pod if pod.owner_uid == uid else replace(pod, attempt=_NO_ATTEMPT) for pod in observed.pods)
    return replace(observed, pods=pods)


def _progress(job: RLJob, observed: Observed, now: datetime, config: OperatorConfig) -> Progress:
    spec_hash = pod_settings_fingerprint(job.spec)
    progress = advance(job.spec, job.status, observed.pods, spec_hash, now)
    if progress.finished or config.allow_privileged_templates:
        return progress
    templates: dict[str, PodOptions] = {
        "workers": job.spec.workers,
        "coordinator": job.spec.coordinator,
        "reward": job.spec.reward,
    }
    if job.spec.trainer_workers is not None:
        templates["trainerWorkers"] = job.spec.trainer_workers
    pools = {one.name: one.pool for one in job.spec.reward.functions if one.pool is not None}
    templates |= {f"reward.functions[{name}].judge.pool": pool for name, pool in pools.items()}
    for field, options in templates.items():
        refused = template.refusals(options.template)
        if refused:
            message = f"spec.{field}.template.{refused[0]}; remove it"
            return finish(progress, Phase.FAILED, "TemplateRefused", message, now)
    return progress


def _child_actions(job: RLJob, observed: Observed, config: OperatorConfig) -> list[Action]:
    """Children whose applied fingerprint is not the wanted one; the Secret is made once and never touched again."""
    actions: list[Action] = [
        apply for apply in children.children(job, config) if observed.children.get(apply.key) != apply.fingerprint
    ]
    secret: CreateOnce = children.token_secret(job, observed.ray_token, observed.judge_token)
    if secret.key not in observed.children:
        actions.append(secret)
    return actions


def _status(
    job: RLJob,
    observed: Observed,
    progress: Progress,
    elasticity: Elasticity,
    acknowledged: projection.Acknowledged | None,
    rewards: RewardPodCounts,
    now: datetime,
) -> RLJobStatus:
    identity = Identity.of(job)
    pods = tuple(pod for pod in observed.pods if pod.attempt == progress.attempt and not pod.deleting)
    needed = tuple(pod for pod in pods if not _is_extra(job, pod))
    lasting = tuple(pod for pod in observed.pods if pod.attempt != progress.attempt or not _is_extra(job, pod))
    desired = _desired(job, progress)
    ready = {component: sum(pod.ready for pod in pods if pod.component is component) for component in Component}
    facts = conditions.facts(progress, replace(observed, pods=lasting), needed, sum(desired.values()), job.status)
    if not progress.finished:
        facts |= limits(job.spec, job.status.runtime)
        repurposed = projection.repurposed(job.status, acknowledged)
        facts |= {ConditionType.REPURPOSED: repurposed} if repurposed is not None else {}
    is_ready = facts[ConditionType.READY].status is ConditionStatus.TRUE
    return RLJobStatus(
        phase=conditions.phase(progress, pods, is_ready, job.status),
        observed_generation=identity.generation,
        attempt=progress.attempt,
        failures=progress.failures,
        start_time=progress.start_time,
        restart_time=progress.restart_time,
        completion_time=progress.completion_time,
        conditions=conditions.with_history(facts, job.status.conditions, identity.generation, now),
        coordinator=PodCounts(desired=desired[Component.COORDINATOR], ready=ready[Component.COORDINATOR]),
        workers=PodCounts(desired=desired[Component.WORKER], ready=ready[Component.WORKER]),
        trainers=PodCounts(desired=desired[Component.TRAINER], ready=ready[Component.TRAINER]),
        rewards=rewards.model_copy(update={"ready": ready[Component.REWARD]}),
        judges=PodCounts(desired=desired[Component.JUDGE], ready=ready[Component.JUDGE]),
        gpus=projection.gpu_counts(job.spec, observed.pods, progress.attempt, acknowledged),
        assignment=elasticity.assignment,
        planner=elasticity.planner,
        runtime=job.status.runtime,
    )


def _desired(job: RLJob, progress: Progress) -> dict[Component, int]:
    """Pods without which the job is not ready."""
    if progress.finished or progress.suspended:
        return dict.fromkeys(Component, 0)
    return {Component.COORDINATOR: 1, **num_peers(job.spec, job.spec.reward.pods)}


def _is_extra(job: RLJob, pod: PodView) -> bool:
    """Whether a pod comes and goes with the load: the job runs with it as without."""
    return pod.component is Component.REWARD and pod.index >= job.spec.reward.pods


def _transitions(before: RLJobStatus, after: RLJobStatus, observed: Observed, progress: Progress) -> list[Event]:
    """Events for what happened to the job's pods, at the moment it shows in the status."""
    events = []
    for pod in observed.pods:
        is_wanted = pod.component is not Component.REWARD or pod.index < after.rewards.desired
        lost = is_wanted and pod.attempt == progress.attempt == before.attempt and (pod.deleting or pod.disruption)
        was_counted = _num_ready_peers(before) > _num_ready_peers(after)
        if lost and was_counted and not progress.finished and not progress.suspended:
            message = f"{describe_end(pod)}; it is replaced when it is gone"
            events.append(Event("Warning", "PodLost", message, key=f"lost-{pod.uid}"))
    unschedulable = _unschedulable(after)
    if unschedulable is not None and _unschedulable(before) is None:
        key = f"unschedulable-{progress.attempt}"
        events.append(Event("Warning", "Unschedulable", unschedulable.message, key))
    repurposed = _repurposed(after)
    if repurposed is not None and _repurposed(before) is None:
        assert after.runtime is not None, "the coordinator has acknowledged it"
        events.append(Event("Normal", "Repurposed", repurposed.message, f"epoch-{after.runtime.applied_epoch}"))
    return events


def _num_ready_peers(status: RLJobStatus) -> int:
    return status.workers.ready + status.trainers.ready + status.rewards.ready + status.judges.ready


def _unschedulable(status: RLJobStatus) -> Condition | None:
    kind = ConditionType.SCHEDULED.value
    return next((c for c in status.conditions if c.type == kind and c.reason == "Unschedulable"), None)


def _repurposed(status: RLJobStatus) -> Condition | None:
    kind = ConditionType.REPURPOSED.value
    return next((c for c in status.conditions if c.type == kind and c.status is ConditionStatus.TRUE), None)


def _expiry(job: RLJob, progress: Progress) -> datetime | None:
    ttl_s = job.spec.ttl_seconds_after_finished
    if not progress.finished or ttl_s is None:
        return None
    assert progress.completion_time is not None, "a finished job has a completion time"
    return parse(progress.completion_time) + timedelta(seconds=ttl_s)


def _requeue_at(job: RLJob, progress: Progress, others: tuple[datetime | None, ...], now: datetime) -> datetime | None:
    moments = (*others, deadline_of(job.spec, progress) if not progress.suspended else None)
    return min((moment for moment in moments if moment is not None and moment > now), default=None)
