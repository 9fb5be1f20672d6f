"""How attempts follow one another: at once, after a back-off, or not at all. Pure."""

from dataclasses import replace
from datetime import datetime, timedelta

from longshore.api.reasons import FailedReason, Reason, RestartReason
from longshore.api.spec import RLJobSpec
from longshore.api.status import MAX_CRASH_NODES, Phase
from longshore_kube.times import rfc3339
from longshore_operator.clock import rfc3339_not_before
from longshore_operator.context import LifecycleProgress
from longshore_operator.ending import describe_end, is_rejected
from longshore_operator.observed import PodView
from longshore_operator.plan import Event

BACKOFF_BASE = timedelta(seconds=10)
BACKOFF_LIMIT = timedelta(minutes=6)
QUIET_RESTART_DELAY = timedelta(seconds=10)
"""Delay before a pod that ended without crashing is replaced: its coordinator is probably ending too."""


def backoff(failures: int) -> timedelta:
    """Return the wait before the restart after this many failures: 10 s, doubling, at most 6 min."""
    assert failures >= 1, failures
    return min(BACKOFF_BASE * (1 << min(failures - 1, 16)), BACKOFF_LIMIT)


def finish(current: LifecycleProgress, phase: Phase, reason: Reason, message: str, now: datetime) -> LifecycleProgress:
    """End the job permanently."""
    kind = "Normal" if phase is Phase.SUCCEEDED else "Warning"
    return replace(
        current,
        phase=phase,
        reason=reason,
        message=message,
        restart_time=None,
        completion_time=rfc3339(now),
        events=(Event(kind, reason, message, key=f"finished-{current.attempt}"),),
    )


def interrupted(current: LifecycleProgress, coordinator: PodView, now: datetime) -> LifecycleProgress:
    """Start a new attempt after something outside has ended the coordinator."""
    least = QUIET_RESTART_DELAY if is_rejected(coordinator) else timedelta()
    return _restarted_again(current, RestartReason.COORDINATOR_INTERRUPTED, describe_end(coordinator), now, least)


def lost(current: LifecycleProgress, now: datetime) -> LifecycleProgress:
    """Start a new attempt after the coordinator has vanished."""
    return _restarted_again(current, RestartReason.COORDINATOR_LOST, "the coordinator pod is gone", now)


def _restarted_again(
    current: LifecycleProgress, reason: RestartReason, message: str, now: datetime, least: timedelta = timedelta()
) -> LifecycleProgress:
    """Start a new attempt: at once, unless this has happened before and the job got no further."""
    current = _counted_since_checkpoint(current)
    delay = backoff(current.interruptions) if current.interruptions > 0 else timedelta()
    counted = replace(current, interruptions=current.interruptions + 1)
    return restarted(counted, reason, message, now + max(least, delay))


def _counted_since_checkpoint(current: LifecycleProgress) -> LifecycleProgress:
    """Count again from zero if there is a newer checkpoint than when failures and interruptions were last counted."""
    if current.checkpoint_step <= current.counted_at_step:
        return current
    return replace(current, failures=0, interruptions=0, counted_at_step=current.checkpoint_step)


def _with_crash_node(current: LifecycleProgress, node: str | None) -> LifecycleProgress:
    """Remember where a pod has crashed: a sick node looks free to the scheduler."""
    if node is None:
        return current
    others = (one for one in current.crash_nodes if one != node)
    return replace(current, crash_nodes=(*others, node)[-MAX_CRASH_NODES:])


def forgiven(current: LifecycleProgress) -> LifecycleProgress:
    """Return the progress of a job that begins as if nothing had happened, since its spec may have been corrected."""
    return replace(current, failures=0, interruptions=0, crash_nodes=())


def restarted(
    current: LifecycleProgress, reason: RestartReason, message: str, starts_at: datetime
) -> LifecycleProgress:
    """Start a new attempt without counting a failure."""
    attempt = current.attempt + 1
    return replace(
        current,
        attempt=attempt,
        restart_time=rfc3339(starts_at),
        phase=Phase.RESTARTING,
        reason=reason,
        message=message,
        events=(Event("Warning", reason, f"{message}; attempt {attempt} starts", f"attempt-{attempt}"),),
    )


def count_failure(
    spec: RLJobSpec, current: LifecycleProgress, pod: PodView, now: datetime, *, new_attempt: bool
) -> LifecycleProgress:
    """Replace a pod that has crashed, or start a new attempt, after the back-off; or end the job."""
    current = _with_crash_node(_counted_since_checkpoint(current), pod.node)
    failures = current.failures + 1
    what = describe_end(pod)
    if failures > spec.backoff_limit:
        failed = replace(current, failures=failures)
        since = f" since the checkpoint of step {current.counted_at_step}" if current.counted_at_step else ""
        message = (
            f"{failures} failures{since} are more than backoffLimit ({spec.backoff_limit}) allows; the last: {what}"
        )
        return finish(failed, Phase.FAILED, FailedReason.BACKOFF_LIMIT_EXCEEDED, message, now)
    delay = backoff(failures)
    attempt = current.attempt + 1 if new_attempt else current.attempt
    subject = f"attempt {attempt}" if new_attempt else "its replacement"
    reason = RestartReason.COORDINATOR_FAILED if new_attempt else RestartReason.POD_FAILED
    return replace(
        current,
        attempt=attempt,
        failures=failures,
        restart_time=rfc3339_not_before(now + delay),
        phase=Phase.RESTARTING,
        reason=reason,
        message=what,
        events=(Event("Warning", reason, f"{what}; {subject} starts in {delay.seconds} s", f"failure-{pod.uid}"),),
    )
