"""Classify the ends of pods, and decide when the next attempt starts: at once, after a back-off, or not at all.

Pure: time is an argument.
"""

import re
from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum, auto

from longshore.api import contract
from longshore.api.contract import ExitCode
from longshore.api.names import Component
from longshore.api.reasons import FailedReason, Reason, RestartReason, SuspendedReason
from longshore.api.spec import RLJobSpec
from longshore.api.status import MAX_CRASH_NODES, ConditionType, Phase, RLJobStatus
from longshore_kube.times import rfc3339
from longshore_operator.context import LifecycleProgress
from longshore_operator.plan import Event
from longshore_operator.pod_view import PodView, ServerEnd

BACKOFF_BASE = timedelta(seconds=10)
BACKOFF_LIMIT = timedelta(minutes=6)
QUIET_RESTART_DELAY = timedelta(seconds=10)
"""Delay before a pod that ended without crashing is replaced: its coordinator is probably ending too."""
EXTRA_POD_DELAY = timedelta(minutes=1)
"""Delay before a pod is replaced whose crash is no failure of the job: of rewards that it can do without, and of an
environment that took too much memory or disk."""
_WITH_GPUS = frozenset({Component.WORKER, Component.TRAINER, Component.JUDGE})
_KILLED = 137
"""Exit code of a container that was killed, mostly because it took more memory than it may."""
_INTERRUPTED_REASONS = frozenset({"Evicted", "NodeLost", "NodeShutdown", "Preempting", "Shutdown", "Terminated"})
"""`status.reason` of pods that the cluster ended, which is never the fault of the job."""
_REJECTED_REASONS = frozenset({"NodeAffinity", "TaintToleration", "TopologyAffinityError", "UnexpectedAdmissionError"})
"""Reasons of pods that a kubelet refuses, as after a reboot of its node, before GPUs are registered again."""
_OWN_LIMIT = re.compile(r"exceed(?:s|ed) (?:its|the) (?:\w+ )*limit")
"""Text in the message of an eviction by which the pod has used more of the disk than it may.

It would do so on every node.
"""
_MEMORY_OF = {
    Component.COORDINATOR: "coordinator.resources",
    Component.WORKER: "workers.resources",
    Component.TRAINER: "trainerWorkers.resources",
    Component.REWARD: "reward.resources",
    Component.JUDGE: "reward.functions[].pool.resources",
    Component.ENVIRONMENT: "environments[].pods.resources",
}
_OUT_OF = "OutOf"
"""Begins the reason of a kubelet that lacks a resource."""


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


def restart_interrupted(current: LifecycleProgress, coordinator: PodView, now: datetime) -> LifecycleProgress:
    """Start a new attempt after something outside has ended the coordinator."""
    least = QUIET_RESTART_DELAY if is_rejected(coordinator) else timedelta()
    return _restart_again(current, RestartReason.COORDINATOR_INTERRUPTED, describe_end(coordinator), now, least)


def restart_lost(current: LifecycleProgress, now: datetime) -> LifecycleProgress:
    """Start a new attempt after the coordinator has vanished."""
    return _restart_again(current, RestartReason.COORDINATOR_LOST, "the coordinator pod is gone", now)


def _restart_again(
    current: LifecycleProgress, reason: RestartReason, message: str, now: datetime, least: timedelta = timedelta()
) -> LifecycleProgress:
    """Start a new attempt: at once, unless this has happened before and the job got no further."""
    counted, delay = _count_interruption(current)
    why = f", after {counted.interruptions} interruptions without a newer checkpoint" if delay else ""
    return restart(counted, reason, message, now, max(least, delay), why)


def replace_squeezed_out(current: LifecycleProgress, pod: PodView, now: datetime) -> LifecycleProgress:
    """Replace a pod that a node under pressure has ended: at once, unless that has happened before."""
    counted, delay = _count_interruption(current)
    return replace_later(counted, pod, now, delay)


def _count_interruption(current: LifecycleProgress) -> tuple[LifecycleProgress, timedelta]:
    """Count an interruption; return the wait for what comes after it."""
    current = _reset_counts_after_checkpoint(current)
    delay = backoff(current.interruptions) if current.interruptions > 0 else timedelta()
    return replace(current, interruptions=current.interruptions + 1), delay


def replace_later(current: LifecycleProgress, pod: PodView, now: datetime, delay: timedelta) -> LifecycleProgress:
    """Replace a pod that has not crashed after a delay."""
    return replace(
        current,
        restart_time=rfc3339_not_before(now + delay) if delay else rfc3339(now),
        phase=Phase.RESTARTING,
        reason=RestartReason.POD_LEFT,
        message=describe_end(pod),
    )


def replace_extra_later(current: LifecycleProgress, pod: PodView, now: datetime) -> LifecycleProgress:
    """Replace a pod whose crash is no failure of the job, after a delay."""
    message = f"{describe_end(pod)}; its replacement starts in {EXTRA_POD_DELAY.seconds} s"
    event = Event("Warning", RestartReason.POD_FAILED, message, f"failure-{pod.uid}")
    return replace(current, restart_time=rfc3339_not_before(now + EXTRA_POD_DELAY), events=(event,))


def _reset_counts_after_checkpoint(current: LifecycleProgress) -> LifecycleProgress:
    """Count again from zero if there is a newer checkpoint than when failures and interruptions were last counted."""
    if current.checkpoint_step <= current.counted_at_step:
        return current
    return replace(current, failures=0, interruptions=0, counted_at_step=current.checkpoint_step)


def _note_crash_node(current: LifecycleProgress, pod: PodView) -> LifecycleProgress:
    """Remember where a pod with GPUs has crashed: a sick node looks free to the scheduler."""
    exceeds_limits = pod.exit_code == _KILLED or pod.reason == "Evicted"  # It would do so on every node.
    if pod.node is None or pod.component not in _WITH_GPUS or exceeds_limits:
        return current
    others = (one for one in current.crash_nodes if one != pod.node)
    return replace(current, crash_nodes=(*others, pod.node)[-MAX_CRASH_NODES:])


def drop_failures(current: LifecycleProgress) -> LifecycleProgress:
    """Return the progress of a job that begins as if nothing had happened, since its spec may have been corrected."""
    return replace(current, failures=0, interruptions=0, counted_at_step=0, crash_nodes=(), out_of_memory_step=None)


def restart(
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
    current = _note_crash_node(_reset_counts_after_checkpoint(current), pod)
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


class PodEnd(Enum):
    """Why a pod no longer works for the job."""

    SUCCEEDED = auto()
    USER_ERROR = auto()
    CANNOT_CONTINUE = auto()
    INTERRUPTED = auto()
    CRASHED = auto()


def pod_end(pod: PodView) -> PodEnd | None:
    """Return how a pod ended, or None while it runs."""
    if pod.terminal and pod.exit_code == ExitCode.SUCCEEDED:
        return PodEnd.SUCCEEDED
    if pod.terminal and pod.exit_code == ExitCode.USER_ERROR:
        return PodEnd.USER_ERROR
    if pod.terminal and pod.exit_code == ExitCode.CANNOT_CONTINUE:
        return PodEnd.CANNOT_CONTINUE
    if pod.terminal and _is_over_its_limit(pod):
        return PodEnd.CRASHED
    if pod.deleting or pod.disruption or pod.reason in _INTERRUPTED_REASONS or is_rejected(pod):
        return PodEnd.INTERRUPTED
    if pod.terminal:
        return PodEnd.INTERRUPTED if pod.exit_code == ExitCode.INTERRUPTED else PodEnd.CRASHED
    return None


def is_rejected(pod: PodView) -> bool:
    """Return whether a kubelet refused it. The scheduler may choose the same node again, so its successor waits."""
    is_refusal = pod.reason in _REJECTED_REASONS or pod.reason.startswith(_OUT_OF) or _is_turned_away(pod)
    return pod.terminal and pod.exit_code is None and is_refusal


def _is_turned_away(pod: PodView) -> bool:
    """Return whether a node under pressure, or one that shuts down, did not even start it."""
    is_late = pod.reason == "NodeShutdown" and "was rejected" in pod.termination_message
    return is_late or (pod.reason == "Evicted" and "The node had condition" in pod.termination_message)


def is_squeezed_out(pod: PodView) -> bool:
    """Return whether a node under pressure ended it, perhaps because of what it does itself."""
    return pod.terminal and pod.reason == "Evicted" and not is_rejected(pod)


def took_too_much(pod: PodView) -> bool:
    """Return whether a pod was ended because it used more memory or disk than it may."""
    return pod.is_out_of_memory or _is_over_its_limit(pod)


def _is_over_its_limit(pod: PodView) -> bool:
    return pod.reason == "Evicted" and _OWN_LIMIT.search(pod.termination_message) is not None


def describe_end(pod: PodView) -> str:
    """Describe in one sentence how a pod ended."""
    if _is_over_its_limit(pod):
        what = "was evicted"
    elif pod.disruption:
        what = f"was disrupted ({pod.disruption})"
    elif is_rejected(pod):
        what = f"was rejected by its node ({pod.reason})"
    elif pod.reason in _INTERRUPTED_REASONS:
        what = f"was ended by the cluster ({pod.reason})"
    elif pod.is_out_of_memory:
        limit = f"its limit of {pod.memory_limit}" if pod.memory_limit else "its limit"
        what = f"was killed: it used more memory than {limit} (OOMKilled); raise {memory_field(pod.component)}"
    elif pod.exit_code is not None:
        what = f"exited with code {pod.exit_code}"
    elif pod.deleting:
        what = "was deleted"
    else:
        what = f"failed ({pod.reason or 'no reason given'})"
    # A process that is killed leaves no message, so the kubelet takes the last lines of its log.
    message = "" if pod.is_out_of_memory else pod.termination_message
    return f"{pod.name} {what}" + (f": {message}" if message else "")


def describe_server_end(pod: PodView, end: ServerEnd) -> str:
    """Describe in one sentence how the server of an environment pod ended."""
    if end.is_out_of_memory:
        what = (
            "was killed: it used more memory than its limit (OOMKilled); raise environments[].server.resources.memory"
        )
    else:
        what = f"exited with code {end.exit_code}" + (f": {end.message}" if end.message else "")
    return f"{pod.name}: container {contract.SERVER_CONTAINER} {what}"


def memory_field(component: Component) -> str:
    """Return the field of the spec with the memory of a component's pods."""
    return f"{_MEMORY_OF[component]}.memory"


def ended_by_cluster(pod: PodView) -> bool:
    """Return whether the cluster ended it for reasons of its own; it then finds it another place."""
    if is_rejected(pod) or is_squeezed_out(pod):
        return False
    return bool(pod.disruption) or pod.reason in _INTERRUPTED_REASONS


def rfc3339_not_before(moment: datetime) -> str:
    """Format a time as in RFC 3339, rounded up to the second: waiting until then never ends early."""
    return rfc3339(moment + timedelta(microseconds=999_999) if moment.microsecond else moment)
