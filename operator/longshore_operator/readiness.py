"""Conditions Scheduled and Ready, and the phase: whether a job runs, and if not, the most informative obstacle."""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Final

from longshore.api.names import Component
from longshore.api.reasons import ReadyReason, ScheduledReason
from longshore.api.runtime_status import ENDING_ACTIVITIES
from longshore.api.spec import RLJobSpec
from longshore.api.status import ConditionStatus, ConditionType, Phase, RLJobStatus
from longshore_kube.times import parse_time
from longshore_operator import topology
from longshore_operator.attempts import describe_server_end
from longshore_operator.context import ClaimView, Context
from longshore_operator.plan import Event, Fact, Outcome
from longshore_operator.pod_actions import num_required
from longshore_operator.pod_view import NORMAL_WAITS, PodView, ServerEnd
from longshore_operator.settings import HOW_TO_TAKE_EFFECT, waits_for_next_attempt
from longshore_operator.size import num_needed
from longshore_operator.template_rules import pod_options

_MAX_NAMES = 5
_TOLD_FOR: Final = timedelta(minutes=5)
_MAX_COMPARED = 500
"""Characters of what was refused; messages of conditions are cut."""
_LIMIT_BELOW_REQUEST: Final = re.compile(r"must be less than or equal to .*limit")
_QUOTA_OF_PODS: Final = re.compile(r"^pods? .*failed quota: [^:]+: must specify (?P<what>.+)", re.IGNORECASE)
_CONTAINERS: Final = re.compile(r"for: ([\w.,-]+)")
_OURS: Final = "longshore"


def reconcile_readiness(context: Context) -> Outcome:
    """Decide Ready, Scheduled (while the job should have pods) and the phase."""
    pods = tuple(pod for pod in context.pods if not _is_extra(context, pod))
    num_pods = sum(num_required(context).values())
    ready = next(_obstacles(context, pods, num_pods), None) or _all_ready(context, num_pods)
    facts = {ConditionType.READY: ready}
    if context.progress.active:
        facts[ConditionType.SCHEDULED] = _scheduled(context, pods, num_pods)
    phase = _phase(context, is_ready=ready.holds)
    return Outcome(events=_events(context, facts), conditions=facts, status=RLJobStatus(phase=phase))


def _is_extra(context: Context, pod: PodView) -> bool:
    """Return whether a pod comes and goes while the job runs, so that the job does not depend on it."""
    needed = {Component.REWARD: context.job.spec.reward.pods, Component.WORKER: num_needed(context)}
    return pod.index >= needed.get(pod.component, pod.index + 1)


def _scheduled(context: Context, pods: Sequence[PodView], num_pods: int) -> Fact:
    unschedulable = _unschedulable(context, pods)
    if unschedulable:
        return Fact(False, ScheduledReason.UNSCHEDULABLE, unschedulable)
    num_scheduled = sum(pod.scheduled for pod in pods)
    if num_scheduled < num_pods:
        message = f"{num_scheduled} of {num_pods} pods have a node"
        return Fact(False, ScheduledReason.WAITING_FOR_PODS, message)
    return Fact(True, ScheduledReason.SCHEDULED, f"all {num_pods} pods have a node")


def _unschedulable(context: Context, pods: Sequence[PodView]) -> str:
    """Return the first pod that fits no node, with the sentence of the scheduler; empty: all pods fit."""
    for pod in pods:
        if pod.unschedulable is not None and not pod.scheduled:
            return f"{pod.name}: {pod.unschedulable}{topology.advise_on_volume(context.job, pods, pod)}"
    return ""


def _events(context: Context, facts: dict[ConditionType, Fact]) -> tuple[Event, ...]:
    """Return events when a pod becomes unschedulable, and when a job that runs lacks a change."""
    status, attempt = context.job.status, context.progress.attempt
    before, now = status.condition(ConditionType.SCHEDULED), facts.get(ConditionType.SCHEDULED)
    events = []
    if now is not None and now.reason == ScheduledReason.UNSCHEDULABLE and not (before and before.reason == now.reason):
        events.append(Event("Warning", now.reason, now.message, f"unschedulable-{attempt}"))
    was_ready, refusal = status.condition(ConditionType.READY), _refusal(context)
    is_said = was_ready is not None and refusal is not None and refusal[:_MAX_COMPARED] in was_ready.message
    if facts[ConditionType.READY].holds and refusal is not None and not is_said:
        events.append(Event("Warning", ReadyReason.APPLY_FAILED, refusal, f"refused-{attempt}-{refusal}"))
    events += [
        Event("Warning", ReadyReason.SERVER_ENDED, describe_server_end(pod, end), f"server-{pod.uid}-{end.finished_at}")
        for pod in context.pods
        if (end := pod.server_end) is not None and (not pod.ready or _is_recent(context, end))
    ]
    return tuple(events)


def _is_recent(context: Context, end: ServerEnd) -> bool:
    """Return whether the end of a server that runs again may still have to be told."""
    return bool(end.finished_at) and context.now - parse_time(end.finished_at) < _TOLD_FOR


def _obstacles(context: Context, pods: Sequence[PodView], num_pods: int) -> Iterator[Fact]:
    """Yield what keeps the job from being ready, causes before consequences."""
    progress, observed = context.progress, context.observed
    if progress.finished:
        yield Fact(False, ReadyReason.FINISHED, "the job has ended")
    if progress.suspended:
        yield Fact(False, ReadyReason.SUSPENDED, "the job is suspended")
    if progress.queued:
        yield Fact(False, ReadyReason.QUEUED, "the job waits to be admitted")
    num_ready = sum(pod.ready for pod in pods)
    if num_ready < num_pods and (refusal := _refusal(context)) is not None:
        yield Fact(False, ReadyReason.APPLY_FAILED, refusal)
    if progress.phase is Phase.RESTARTING:
        yield _restarting(context)
    for pod in pods:
        if not pod.ready and pod.server_end is not None:
            yield Fact(False, ReadyReason.SERVER_ENDED, describe_server_end(pod, pod.server_end))
    for pod in pods:
        if pod.waiting_reason is not None and pod.waiting_reason not in NORMAL_WAITS:
            detail = f": {pod.waiting_message}" if pod.waiting_message else ""
            yield Fact(False, pod.waiting_reason, f"{pod.name}{detail}")
    leaving = sorted(
        pod.name
        for pod in observed.pods
        if pod.attempt != progress.attempt or (pod.deleting and not _is_extra(context, pod))
    )
    if leaving:
        yield Fact(False, ReadyReason.WAITING_FOR_PODS_TO_END, f"still ending: {_some(leaving)}")
    if len(pods) < num_pods and observed.pod_group is not None and observed.pod_group.mistake:
        yield Fact(False, ReadyReason.POD_GROUP_UNAVAILABLE, observed.pod_group.mistake)
    if num_ready < num_pods:
        yield from _storage(observed.claim)
        yield Fact(
            False, ReadyReason.PODS_NOT_READY, f"{num_ready} of {num_pods} pods are ready{_missing(context, pods)}"
        )


def _missing(context: Context, pods: Sequence[PodView]) -> str:
    """Return which pods a job lacks while its coordinator is ready, so that it may already train or wait for them."""
    if not any(pod.ready and pod.component is Component.COORDINATOR for pod in pods):
        return ""
    if unschedulable := _unschedulable(context, pods):
        return f"; {unschedulable}"
    unready = sorted(pod.name for pod in pods if not pod.ready)
    return f"; not ready: {_some(unready)}" if unready else ""


def _all_ready(context: Context, num_pods: int) -> Fact:
    """Return that the job runs, although the API server may refuse a change: one more pod, or a right."""
    refusal = _refusal(context)
    more = "" if refusal is None else f"; but a change cannot be made: {refusal}"
    image = context.job.spec.image
    if waits_for_next_attempt(image, context.decided.settings):
        more += f"; spec.image: {image} {HOW_TO_TAKE_EFFECT}"
    return Fact(True, ReadyReason.PODS_READY, f"all {num_pods} pods are ready{more}")


def _refusal(context: Context) -> str | None:
    """Return what the API server refuses, with the fix."""
    error = context.observed.apply_error
    return None if error is None else with_advice(error, _components(context.job.spec))


def _components(spec: RLJobSpec) -> list[str]:
    """Return the fields of the spec that describe pods, without rewards if the job has no such pods."""
    return [f"spec.{field}" for field in pod_options(spec) if field != "reward" or spec.reward.most_pods]


def _restarting(context: Context) -> Fact:
    """Return the reason of the restart, which stays visible for as long as the restart lasts."""
    progress, before = context.progress, context.job.status.condition(ConditionType.READY)
    if progress.reason:
        until = f"; restart not before {progress.restart_time}" if progress.restart_time else ""
        return Fact(False, progress.reason, f"{progress.message}{until}")
    if before is not None and before.status is ConditionStatus.FALSE:
        return Fact(False, before.reason, before.message)
    return Fact(False, ReadyReason.RESTARTING, "failed pods are being replaced")


def _storage(claim: ClaimView | None) -> Iterator[Fact]:
    if claim is None:
        return
    if not claim.exists:
        message = f"there is no PersistentVolumeClaim {claim.name} in this namespace: create it, or use storage.create"
        yield Fact(False, ReadyReason.STORAGE_NOT_FOUND, message)
    if claim.phase == "Pending":
        yield Fact(False, ReadyReason.STORAGE_PENDING, f"PersistentVolumeClaim {claim.name} is not bound yet")
    if claim.phase == "Lost":
        yield Fact(False, ReadyReason.STORAGE_LOST, f"PersistentVolumeClaim {claim.name} lost its volume")


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _phase(context: Context, *, is_ready: bool) -> Phase:
    """Return the phase. Pods that end because the job is about to end do not count as a restart."""
    progress, before, runtime = context.progress, context.job.status.phase, context.runtime
    is_ending = runtime is not None and runtime.activity in ENDING_ACTIVITIES
    if before is Phase.RUNNING and progress.active and is_ending:
        return Phase.RUNNING
    if progress.phase is not None:
        return progress.phase
    if is_ready:
        return Phase.RUNNING
    if before in (Phase.RUNNING, Phase.RESTARTING):
        return Phase.RESTARTING
    coordinator = next((pod for pod in context.pods if pod.component is Component.COORDINATOR), None)
    return Phase.STARTING if coordinator is not None and coordinator.scheduled else Phase.PENDING


def with_advice(refusal: str, components: Iterable[str]) -> str:
    """Return what the API server says, with the fix if it is about requests and limits of a pod.

    `components`: fields of the spec that describe pods, such as `spec.workers`.
    """
    fields = list(components)
    templates = _listed([f"{field}.template" for field in fields])
    if _LIMIT_BELOW_REQUEST.search(refusal):
        return (
            f"{refusal}; that limit is one of the template or of a LimitRange of the namespace: set higher limits of "
            f"the container longshore in {templates}, or lower resources there"
        )
    required = _QUOTA_OF_PODS.search(refusal)
    if required is None:
        return refusal
    named = [name for names in _CONTAINERS.findall(required["what"]) for name in names.split(",")]
    containers = list(dict.fromkeys(named)) or [_OURS]
    if "limits." in required["what"] or containers != [_OURS]:
        what = "limits" if "limits." in required["what"] else "resources"
        plural = "s" if len(containers) > 1 else ""
        return f"{refusal}; set them as {what} of the container{plural} {_listed(containers)} in {templates}"
    return f"{refusal}; set them in resources of {_listed(fields)}"


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
