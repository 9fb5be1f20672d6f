"""The life cycle of a job: attempts, failures, back-off, suspension and the end.

A pure state machine. What must be remembered lies in the RLJob's status, in one write per transition:

* `attempt` names the current set of pods. It grows when the coordinator has ended or was lost.
* `restartTime` is set while something waits to be started: the coordinator of the current attempt until it has been
  seen, or, while the coordinator runs, other failed pods until that time has come and all of them are gone. Pods that
  fail meanwhile belong to the same failure, so a failure is counted once, also if the operator restarts half-way.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from longshore.api.names import Component
from longshore.api.reasons import (
    CompleteReason,
    EventReason,
    FailedReason,
    RestartReason,
    SuspendedReason,
)
from longshore.api.spec import RLJobSpec
from longshore.api.status import FINISHED_PHASES, WITHOUT_PODS, ConditionType, Phase, RLJobStatus
from longshore_kube.times import parse_time, rfc3339
from longshore_operator.attempts import (
    QUIET_RESTART_DELAY,
    PodEnd,
    count_failure,
    drop_failures,
    ended_by_cluster,
    finish,
    is_held,
    is_squeezed_out,
    pod_end,
    replace_extra_later,
    replace_later,
    replace_squeezed_out,
    restart,
    restart_interrupted,
    restart_lost,
    took_too_much,
)
from longshore_operator.context import Admission, Context, LifecycleProgress
from longshore_operator.identity import Identity
from longshore_operator.plan import DeleteJob, Event, Fact, Outcome, next_of
from longshore_operator.pod_view import PodView


def advance(
    spec: RLJobSpec,
    status: RLJobStatus,
    pods: tuple[PodView, ...],
    now: datetime,
    *,
    settings_changed: bool,
    admission: Admission | None = None,
    lost_secrets: Sequence[str] = (),
) -> LifecycleProgress:
    """Return the next state of the job. Deterministic: the same input gives the same progress.

    `settings_changed`: the pods of the attempt run with other settings than the spec has now. `lost_secrets`: Secrets
    that were deleted while pods of the attempt run.
    """
    current = read_progress(status, now)
    if current.finished:
        return current
    mine = tuple(pod for pod in pods if pod.attempt == status.attempt)
    verdict = _judge_end(current, mine, now)
    if verdict is not None:
        return verdict
    if spec.suspend:
        return _suspend(current, status)
    if (held := _hold(current, status, mine, settings_changed=settings_changed)) is not None:
        return held
    if admission is not None and not admission.admitted:
        return _queue(current, status, admission)
    if status.attempt == 0 or status.phase in WITHOUT_PODS:
        return _begin(current, status, now)
    deadline = _deadline(spec, current)
    if deadline is not None and deadline <= now:
        message = f"the job was active for more than activeDeadlineSeconds ({spec.active_deadline_seconds} s)"
        return finish(current, Phase.FAILED, FailedReason.DEADLINE_EXCEEDED, message, now)
    after = _advance_attempt(spec, current, mine, now, settings_changed=settings_changed)
    if lost_secrets and not after.finished and after.attempt == current.attempt:
        # Pods that run have the old tokens, which nobody can read; new pods could not join them with new ones.
        why = f"Secret {lost_secrets[0]} was deleted, and with new tokens no pod can join those that run"
        return restart(current, RestartReason.SECRET_DELETED, why, now)
    return after


def read_progress(status: RLJobStatus, now: datetime) -> LifecycleProgress:
    """Return how far the job is by its status; `now`: its end if it has ended and the status does not say when."""
    is_finished = status.phase in FINISHED_PHASES
    return LifecycleProgress(
        attempt=status.attempt,
        failures=status.failures,
        interruptions=status.interruptions,
        counted_at_step=status.counted_at_step,
        crash_nodes=tuple(status.crash_nodes),
        step=status.runtime.step if status.runtime is not None else 0,
        out_of_memory_step=status.out_of_memory_step,
        checkpoint_step=(status.runtime.checkpoint_step or 0) if status.runtime is not None else 0,
        phase=status.phase if is_finished else None,
        start_time=status.start_time,
        restart_time=status.restart_time,
        completion_time=status.completion_time or (rfc3339(now) if is_finished else None),
    )


def reconcile_lifecycle(context: Context) -> Outcome:
    """Report the progress, and delete the job when its time to live after the end is over."""
    job, progress, now = context.job, context.progress, context.now
    return Outcome(
        events=progress.events,
        conditions=_conditions(progress, job.status),
        status=RLJobStatus(
            attempt=progress.attempt,
            failures=progress.failures,
            interruptions=progress.interruptions,
            counted_at_step=progress.counted_at_step,
            crash_nodes=list(progress.crash_nodes),
            out_of_memory_step=progress.out_of_memory_step,
            start_time=progress.start_time,
            restart_time=progress.restart_time,
            completion_time=progress.completion_time,
        ),
        requeue_at=next_of(now, _deadline(job.spec, progress)),
    ).merge(delete_expired(context))


def delete_expired(context: Context) -> Outcome:
    """Delete a job whose time to live after its end is over."""
    expiry = _expiry(context.job.spec, context.progress)
    if expiry is None or expiry > context.now:
        return Outcome(requeue_at=expiry)
    return Outcome(actions=(DeleteJob(Identity.of(context.job).uid),))


def _conditions(progress: LifecycleProgress, before: RLJobStatus) -> dict[ConditionType, Fact]:
    if progress.finished:
        kind = ConditionType.COMPLETE if progress.phase is Phase.SUCCEEDED else ConditionType.FAILED
        old = before.condition(kind)
        reason = progress.reason or (old.reason if old else CompleteReason.FINISHED)
        message = progress.message or (old.message if old else "")
        return {kind: Fact(True, reason, message)}
    if progress.suspended:
        return {ConditionType.SUSPENDED: Fact(True, progress.reason, progress.message)}
    if before.condition(ConditionType.SUSPENDED) is not None:
        return {ConditionType.SUSPENDED: Fact(False, SuspendedReason.RESUMED, "the job was resumed")}
    return {}


def _expiry(spec: RLJobSpec, progress: LifecycleProgress) -> datetime | None:
    """Return when a finished job is deleted, if ever."""
    if not progress.finished or spec.ttl_seconds_after_finished is None:
        return None
    assert progress.completion_time is not None, "a finished job has a completion time"
    return parse_time(progress.completion_time) + timedelta(seconds=spec.ttl_seconds_after_finished)


def _deadline(spec: RLJobSpec, progress: LifecycleProgress) -> datetime | None:
    """Return when the job's active deadline is reached, if it has one and is active."""
    if spec.active_deadline_seconds is None or progress.start_time is None or progress.finished:
        return None
    return parse_time(progress.start_time) + timedelta(seconds=spec.active_deadline_seconds)


def _judge_end(current: LifecycleProgress, mine: tuple[PodView, ...], now: datetime) -> LifecycleProgress | None:
    """Return an end that takes precedence over everything else: success, or a user's mistake that a pod reported."""
    for pod in mine:
        if pod_end(pod) is PodEnd.SUCCEEDED and pod.component is Component.COORDINATOR:
            message = pod.termination_message or "training finished"
            return finish(current, Phase.SUCCEEDED, CompleteReason.FINISHED, message, now)
    for pod in mine:
        if pod_end(pod) is PodEnd.USER_ERROR:
            message = pod.termination_message or f"{pod.name} reported a mistake in the job without naming it"
            return finish(current, Phase.FAILED, FailedReason.USER_ERROR, message, now)
    return None


def _suspend(current: LifecycleProgress, status: RLJobStatus) -> LifecycleProgress:
    suspended = replace(
        current,
        phase=Phase.SUSPENDED,
        start_time=None,
        restart_time=None,
        reason=SuspendedReason.SUSPENDED,
        message="spec.suspend is true; the state is kept and resumed from the newest checkpoint",
    )
    if status.phase is Phase.SUSPENDED:
        return suspended
    key = f"suspended-{current.attempt}"
    event = Event("Normal", SuspendedReason.SUSPENDED, "all pods are being stopped", key)
    return replace(suspended, events=(event,))


def _hold(
    current: LifecycleProgress, status: RLJobStatus, mine: tuple[PodView, ...], *, settings_changed: bool
) -> LifecycleProgress | None:
    """Suspend a job that cannot go on from its checkpoint, until its owner has suspended, corrected and resumed it."""
    held = replace(
        current, phase=Phase.SUSPENDED, start_time=None, restart_time=None, reason=SuspendedReason.CANNOT_CONTINUE
    )
    if status.phase in WITHOUT_PODS:
        before = status.condition(ConditionType.SUSPENDED)
        is_as_it_was = is_held(status) and not settings_changed
        return replace(held, message=before.message) if before is not None and is_as_it_was else None
    for pod in mine:
        if pod.component is Component.COORDINATOR and pod_end(pod) is PodEnd.CANNOT_CONTINUE:
            found = pod.termination_message or f"{pod.name} reported a mistake in the job without naming it"
            message = (
                f"{found}. The job keeps its checkpoints: `longshore suspend` it, correct it, and `longshore resume` it"
            )
            event = Event("Warning", held.reason, message, f"held-{current.attempt}")
            return replace(held, message=message, events=(event,))
    return None


def _queue(current: LifecycleProgress, status: RLJobStatus, admission: Admission) -> LifecycleProgress:
    """Wait for admission. A running job stops as if suspended, and later continues from its newest checkpoint."""
    was_active = status.attempt > 0
    queued = replace(
        drop_failures(current) if status.phase is Phase.SUSPENDED else current,
        phase=Phase.QUEUED,
        start_time=None,
        restart_time=None,
        reason=admission.reason,
        message=admission.message,
    )
    if not was_active or status.phase in WITHOUT_PODS:
        return queued
    event = Event("Warning", admission.reason, f"{admission.message}; all pods stop", f"stop-{current.attempt}")
    return replace(queued, events=(event,))


def _begin(current: LifecycleProgress, status: RLJobStatus, now: datetime) -> LifecycleProgress:
    """Start or resume. After a suspension, failures count from zero, because the spec may have been corrected."""
    resumed, attempt = current.attempt > 0, current.attempt + 1
    reason = SuspendedReason.RESUMED if resumed else EventReason.STARTED
    message = f"the job {'resumes' if resumed else 'starts'} with attempt {attempt}"
    return replace(
        current if status.phase is Phase.QUEUED else drop_failures(current),
        attempt=attempt,
        start_time=rfc3339(now),
        restart_time=rfc3339(now),
        reason=reason,
        message=message,
        events=(Event("Normal", reason, message, f"attempt-{attempt}"),),
    )


def _advance_attempt(
    spec: RLJobSpec, current: LifecycleProgress, mine: tuple[PodView, ...], now: datetime, *, settings_changed: bool
) -> LifecycleProgress:
    """Advance an active job: first by its coordinator, then by the other pods."""
    coordinator = next((pod for pod in mine if pod.component is Component.COORDINATOR), None)
    peers = tuple(pod for pod in mine if pod.component is not Component.COORDINATOR)
    if coordinator is None:
        if current.restart_time is not None and not peers:
            backs_off = parse_time(current.restart_time) > now
            return replace(current, phase=Phase.RESTARTING) if backs_off else current
        return restart_lost(current, now)
    end = pod_end(coordinator)
    if end is PodEnd.INTERRUPTED:
        return restart_interrupted(current, coordinator, now)
    if end is PodEnd.CRASHED:
        return count_failure(spec, current, coordinator, now, new_attempt=True)
    if settings_changed:
        why = "its pods run with other settings than the spec has now"
        return restart(current, RestartReason.SPEC_CHANGED, why, now)
    return _advance_peers(spec, current, peers, now)


def _advance_peers(
    spec: RLJobSpec, current: LifecycleProgress, peers: tuple[PodView, ...], now: datetime
) -> LifecycleProgress:
    """Count failures of the other pods when they begin, and replace the pods when the back-off is over.

    Reward pods beyond those that the spec asks for come and go while the job runs, which does not stop for them.
    """
    terminal = [pod for pod in peers if pod.terminal]
    if current.restart_time is None:
        after = _replace_ended(spec, current, [pod for pod in terminal if not pod.deleting], now)
    elif terminal:
        after = replace(current, phase=Phase.RESTARTING)
    else:
        # Somebody may have removed what waits, which does not come back earlier for that.
        waits = parse_time(current.restart_time) > now
        after = current if waits else replace(current, restart_time=None)
    is_stopped = after.finished or any(_is_needed(spec, pod) for pod in terminal)
    return after if is_stopped else replace(after, phase=None)


def _is_needed(spec: RLJobSpec, pod: PodView) -> bool:
    """Return whether the job fails if a pod keeps crashing.

    What the policy does in an environment can take all memory and disk of its pod. That must cost the job no more than
    the episodes of that pod.
    """
    if pod.component is Component.ENVIRONMENT:
        return not took_too_much(pod)
    return pod.component is not Component.REWARD or pod.index < spec.reward.pods


def _replace_ended(
    spec: RLJobSpec, current: LifecycleProgress, ended: Sequence[PodView], now: datetime
) -> LifecycleProgress:
    """Decide when pods that have ended are replaced: what the cluster has ended for reasons of its own, at once."""
    crashed = [pod for pod in ended if pod_end(pod) is PodEnd.CRASHED]
    if needed := next((pod for pod in crashed if _is_needed(spec, pod)), None):
        return count_failure(spec, current, needed, now, new_attempt=False)
    for pod in ended:
        if pod in crashed:
            continue
        if is_squeezed_out(pod):
            return replace_squeezed_out(current, pod, now)
        if not ended_by_cluster(pod):
            return replace_later(current, pod, now, QUIET_RESTART_DELAY)
    return replace_extra_later(current, crashed[0], now) if crashed else current
