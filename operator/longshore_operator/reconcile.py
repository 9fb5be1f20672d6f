"""`reconcile`: the whole of the operator's decisions, without I/O and without a clock of its own."""

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice

from pydantic import ValidationError

from longshore.api.mistakes import sentence
from longshore.api.names import Component
from longshore.api.pods import PodOptions
from longshore.api.rljob import RLJob
from longshore.api.spec import RLJobSpec
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
from longshore_operator import children, conditions, projection
from longshore_operator.clock import parse, timestamp
from longshore_operator.conditions import Fact
from longshore_operator.converge import POD_BATCH, Wanted, converge, num_peers
from longshore_operator.elasticity import Elasticity, assign, limits
from longshore_operator.fingerprint import pod_settings_fingerprint
from longshore_operator.identity import Identity
from longshore_operator.lifecycle import Progress, advance, deadline_of, describe_end, finish
from longshore_operator.notices import alarm_fact, notice_events
from longshore_operator.observed import Observed, PodView
from longshore_operator.plan import Action, CreateOnce, DeleteJob, DeletePod, Event, OperatorConfig, Plan
from longshore_operator.rewards import addresses, size_rewards
from longshore_operator.template_rules import refusals, refused_runtime_class

_NO_ATTEMPT = -1


def reconcile(job: RLJob, observed: Observed, now: datetime, config: OperatorConfig) -> Plan:
    """Actions and status that bring `job` from what is `observed` to what its spec asks for.

    Level-triggered: the same input twice gives the same plan, and once a plan is applied the next one is empty until
    something changes or `requeue_at` comes. A job that is being deleted is left to the garbage collector.
    """
    if "deletionTimestamp" in job.metadata:
        return Plan()
    observed = _without_namesakes(observed, Identity.of(job).uid)
    refused = None if job.status.phase in FINISHED_PHASES else _refused_template(job.spec, config)
    spec_hash = observed.spec_hash or pod_settings_fingerprint(job.spec)
    progress = advance(job.spec, job.status, observed.pods, spec_hash, now)
    if refused is not None and not progress.finished:
        progress = finish(progress, Phase.FAILED, "TemplateRefused", refused, now)
    elasticity = assign(job, progress, observed.told_rejection)
    rewards = size_rewards(job, progress, now)
    wanted = Wanted(elasticity.assignment.baseline.tp_size, rewards.counts.desired, spec_hash)
    work = converge(job, config, progress, observed.pods, wanted, now)
    acknowledged = projection.acknowledged(job.status.runtime, progress)
    status = _status(job, observed, progress, elasticity, acknowledged, rewards.counts, now)
    actions: list[Action] = []
    is_active = not progress.finished and not progress.suspended
    if is_active:
        actions += _child_actions(job, observed, config)
    actions += [*work.delete, *work.create]
    labels = list(islice(projection.label_pods(observed.pods, progress.attempt, acknowledged), POD_BATCH + 1))
    actions += labels[:POD_BATCH]
    actions += [*_unreadable(job.status, observed.unreadable_status)]
    actions += [*progress.events, *elasticity.events, *rewards.events]
    actions += notice_events(job.status, observed.told_notice)
    actions += _transitions(job.status, status, observed, progress)
    expiry = _expiry(job, progress)
    if expiry is not None and expiry <= now:
        actions.append(DeleteJob(Identity.of(job).uid))
    is_more = work.wake_at == now or len(labels) > POD_BATCH
    wake_at = now if is_more else _requeue_at(job, progress, (work.wake_at, rewards.wake_at, expiry), now)
    return Plan(tuple(actions), status, wake_at, has_all_children=is_active)


def reject(
    status: RLJobStatus, generation: int, error: ValidationError, pods: tuple[PodView, ...], now: datetime
) -> Plan:
    """A stored job that this version cannot read or name children after: it fails with the sentence that says why."""
    leaving = [DeletePod(pod.name, pod.uid) for pod in pods if not (pod.deleting or pod.terminal)]
    deletions, wake_at = tuple(leaving[:POD_BATCH]), now if len(leaving) > POD_BATCH else None
    if status.phase in FINISHED_PHASES:
        return Plan(deletions, requeue_at=wake_at)
    message = f"{sentence(error)}; correct it in a new job"
    reason = "TemplateRefused" if "template" in error.errors()[0]["loc"] else "InvalidSpec"
    fact = {
        ConditionType.FAILED: Fact(ConditionStatus.TRUE, reason, message),
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
    event = Event("Warning", reason, message, key=f"invalid-{generation}")
    return Plan((*deletions, event), failed, wake_at)


def _without_namesakes(observed: Observed, uid: str) -> Observed:
    """Pods of a deleted job of the same name belong to no attempt: they must be gone before anything starts."""
    if all(pod.owner_uid == uid for pod in observed.pods):
        return observed
    pods = tuple(pod if pod.owner_uid == uid else replace(pod, attempt=_NO_ATTEMPT) for pod in observed.pods)
    return replace(observed, pods=pods)


def _refused_template(spec: RLJobSpec, config: OperatorConfig) -> str | None:
    """The sentence about the first thing that a template must not ask for."""
    templates: dict[str, PodOptions] = {"workers": spec.workers, "coordinator": spec.coordinator, "reward": spec.reward}
    if spec.trainer_workers is not None:
        templates["trainerWorkers"] = spec.trainer_workers
    pools = {one.name: one.pool for one in spec.reward.functions if one.pool is not None}
    templates |= {f"reward.functions[{name}].judge.pool": pool for name, pool in pools.items()}
    for field, options in templates.items():
        found = refusals(options.template, config.allowed)
        if found:
            return f"spec.{field}.template.{found[0]}; remove it"
    refused = refused_runtime_class(spec.reward.runtime_class_name, config.allowed)
    return None if refused is None else f"spec.reward.runtimeClassName: {refused}; choose another, or remove it"


def _unreadable(before: RLJobStatus, why: str) -> list[Event]:
    """Told when it begins; the condition shows it as long as it lasts."""
    if not why or any(condition.type == ConditionType.STATUS_UNREADABLE.value for condition in before.conditions):
        return []
    return [Event("Warning", "StatusUnreadable", why, key=f"unreadable-{before.attempt}")]


def _child_actions(job: RLJob, observed: Observed, config: OperatorConfig) -> list[Action]:
    """Children whose applied fingerprint is not the wanted one; Secrets are made once and never touched again."""
    if observed.applied_generation == Identity.of(job).generation > 0:
        return []
    actions: list[Action] = [
        apply for apply in children.children(job, config) if observed.children.get(apply.key) != apply.fingerprint
    ]
    secrets: list[CreateOnce] = [
        children.token_secret(job, observed.ray_token, observed.judge_token),
        children.reward_secret(job, observed.reward_token),
    ]
    return [*actions, *(secret for secret in secrets if secret.key not in observed.children)]


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
    if observed.unreadable_status:
        facts[ConditionType.STATUS_UNREADABLE] = Fact(ConditionStatus.TRUE, "Dropped", observed.unreadable_status)
    alarm = alarm_fact(job.status)
    facts |= {ConditionType.TRAINING_ALARM: alarm} if alarm is not None else {}
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
        rewards=rewards.model_copy(update={"ready": ready[Component.REWARD], "addresses": addresses(pods)}),
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
