"""Decide how attempts follow one another: at once, after a back-off, or not at all. Pure."""

from dataclasses import replace
from datetime import datetime, timedelta

from longshore.api.names import Component
from longshore.api.reasons import FailedReason, Reason, RestartReason, SuspendedReason
from longshore.api.spec import RLJobSpec
from longshore.api.status import MAX_CRASH_NODES, ConditionType, Phase, RLJobStatus
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
EXTRA_POD_DELAY = timedelta(minutes=1)
"""Delay before a reward pod that crashed is replaced, if the job can do without it."""
_WITH_GPUS = frozenset({Component.WORKER, Component.TRAINER, Component.JUDGE})
_KILLED = 137
"""Exit code of a container that was killed, mostly because it took more memory than it may."""


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


def is_held(status: RLJobStatus) -> bool:
    """Return whether the job has no pods because it could not go on from its checkpoint."""
    suspended = status.condition(ConditionType.SUSPENDED)
    is_reason = suspended is not None and suspended.reason == SuspendedReason.CANNOT_CONTINUE
    return status.phase is Phase.SUSPENDED and is_reason


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
    counted, delay = _interruption(current)
    why = f", after {counted.interruptions} interruptions without a newer checkpoint" if delay else ""
    return restarted(counted, reason, message, now, max(least, delay), why)


def squeezed_out(current: LifecycleProgress, pod: PodView, now: datetime) -> LifecycleProgress:
    """Replace a pod that a node under pressure has ended: at once, unless that has happened before."""
    counted, delay = _interruption(current)
    return put_off(counted, pod, now, delay)


def _interruption(current: LifecycleProgress) -> tuple[LifecycleProgress, timedelta]:
    """Count an interruption; return the wait for what comes after it."""
    current = _counted_since_checkpoint(current)
    delay = backoff(current.interruptions) if current.interruptions > 0 else timedelta()
    return replace(current, interruptions=current.interruptions + 1), delay


def put_off(current: LifecycleProgress, pod: PodView, now: datetime, delay: timedelta) -> LifecycleProgress:
    """Replace a pod that has not crashed after a delay."""
    return replace(
        current,
        restart_time=rfc3339_not_before(now + delay) if delay else rfc3339(now),
        phase=Phase.RESTARTING,
        reason=RestartReason.POD_LEFT,
        message=describe_end(pod),
    )


def extra_crashed(current: LifecycleProgress, pod: PodView, now: datetime) -> LifecycleProgress:
    """Replace a pod that the job can do without, after a delay. That it crashes is no failure of the job."""
    message = f"{describe_end(pod)}; its replacement starts in {EXTRA_POD_DELAY.seconds} s"
    event = Event("Warning", RestartReason.POD_FAILED, message, f"failure-{pod.uid}")
    return replace(current, restart_time=rfc3339_not_before(now + EXTRA_POD_DELAY), events=(event,))


def _counted_since_checkpoint(current: LifecycleProgress) -> LifecycleProgress:
    """Count again from zero if there is a newer checkpoint than when failures and interruptions were last counted."""
    if current.checkpoint_step <= current.counted_at_step:
        return current
    return replace(current, failures=0, interruptions=0, counted_at_step=current.checkpoint_step)


def _with_crash_node(current: LifecycleProgress, pod: PodView) -> LifecycleProgress:
    """Remember where a pod with GPUs has crashed: a sick node looks free to the scheduler."""
    exceeds_limits = pod.exit_code == _KILLED or pod.reason == "Evicted"  # It would do so on every node.
    if pod.node is None or pod.component not in _WITH_GPUS or exceeds_limits:
        return current
    others = (one for one in current.crash_nodes if one != pod.node)
    return replace(current, crash_nodes=(*others, pod.node)[-MAX_CRASH_NODES:])


def forgiven(current: LifecycleProgress) -> LifecycleProgress:
    """Return the progress of a job that begins as if nothing had happened, since its spec may have been corrected."""
    return replace(current, failures=0, interruptions=0, counted_at_step=0, crash_nodes=(), out_of_memory_step=None)


def restarted(
    current: LifecycleProgress,
    reason: RestartReason,
    message: str,
    now: datetime,
    delay: timedelta = timedelta(),
    why: str = "",
) -> LifecycleProgress:
    """Start a new attempt without counting a failure; `why` it is delayed is for its event."""
    attempt = current.attempt + 1
    when = f" in {delay.seconds} s{why}" if delay else ""
    return replace(
        current,
        attempt=attempt,
        restart_time=rfc3339_not_before(now + delay) if delay else rfc3339(now),
        phase=Phase.RESTARTING,
        reason=reason,
        message=message,
        events=(Event("Warning", reason, f"{message}; attempt {attempt} starts{when}", f"attempt-{attempt}"),),
    )


def count_failure(
    spec: RLJobSpec, current: LifecycleProgress, pod: PodView, now: datetime, *, new_attempt: bool
) -> LifecycleProgress:
    """Replace a pod that has crashed, or start a new attempt, after the back-off; or end the job."""
    current = _with_crash_node(_counted_since_checkpoint(current), pod)
    failures = current.failures + 1
    what = describe_end(pod)
    if pod.is_out_of_memory and pod.component is not Component.REWARD:  # What rewards run differs each time.
        if current.out_of_memory_step == current.step:
            message = f"{what}; it has happened twice at step {current.step}"
            return finish(replace(current, failures=failures), Phase.FAILED, FailedReason.OUT_OF_MEMORY, message, now)
        current = replace(current, out_of_memory_step=current.step)
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
