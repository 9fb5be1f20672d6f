"""The pods of a job: which to create, which to delete, and when to look again."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import chain, islice
from typing import Any

from longshore.api import names
from longshore.api.environment import environment_pods
from longshore.api.names import Component
from longshore.api.reasons import EventReason
from longshore.api.rljob import RLJob
from longshore.api.spec import RLJobSpec
from longshore.api.status import ListeningPodCounts, PodCounts, RLJobStatus
from longshore_kube.times import parse_time
from longshore_operator import pods as build
from longshore_operator.attempts import describe_end, ended_by_cluster
from longshore_operator.config import OperatorConfig
from longshore_operator.context import Context, PodPlacement
from longshore_operator.identity import Identity
from longshore_operator.kueue.workload import place_pod
from longshore_operator.plan import POD_BATCH, Action, CreatePod, DeletePod, Event, Outcome
from longshore_operator.pod_group_api import join_group
from longshore_operator.pod_group_steps import may_create_members
from longshore_operator.pod_sets import pod_set
from longshore_operator.pod_view import PodView
from longshore_operator.size import num_granted, num_needed, num_wanted
from longshore_operator.topology import avoid_nodes

_Build = Callable[[RLJob, OperatorConfig, int, int, str], dict[str, Any]]
"""Job, operator, attempt, index and coordinator's address -> the manifest of a pod."""


def reconcile_pods(context: Context) -> Outcome:
    """Return the actions that bring the pods to what the life cycle asks for, and how many there are.

    A pod is created only when no pod of an earlier attempt exists any more, so two attempts never run at once. One pass
    deletes and creates at most `POD_BATCH` pods, so that other jobs have their turn.
    """
    work, backs_off_until = _converge(context)
    actions = tuple(islice(work, POD_BATCH + 1))
    is_more = len(actions) > POD_BATCH
    required = num_required(context)
    counts = {kind: PodCounts(desired=required[kind], ready=context.num_ready(kind)) for kind in Component}
    hosts = counts[Component.ENVIRONMENT]
    addresses = context.addresses(Component.ENVIRONMENT, len(environment_pods(context.job.spec.environments)))
    return Outcome(
        actions=actions[:POD_BATCH],
        events=_losses(context),
        status=RLJobStatus(
            coordinator=counts[Component.COORDINATOR],
            workers=counts[Component.WORKER],
            trainers=counts[Component.TRAINER],
            judges=counts[Component.JUDGE],
            environments=ListeningPodCounts(desired=hosts.desired, ready=hosts.ready, addresses=addresses),
        ),
        requeue_at=context.now if is_more else backs_off_until,
    )


def num_required(context: Context) -> dict[Component, int]:
    """Return the number of pods without which the job is not ready."""
    if not context.progress.active:
        return dict.fromkeys(Component, 0)
    return {Component.COORDINATOR: 1, **_num_peers(context.job.spec, num_needed(context), context.job.spec.reward.pods)}


def _num_peers(spec: RLJobSpec, num_workers: int, num_rewards: int) -> dict[Component, int]:
    """Return the number of pods other than the coordinator."""
    return {
        Component.WORKER: num_workers,
        Component.TRAINER: spec.trainer_workers.replicas if spec.trainer_workers is not None else 0,
        Component.JUDGE: spec.reward.num_judge_pods,
        Component.REWARD: num_rewards,
        Component.ENVIRONMENT: len(environment_pods(spec.environments)),
    }


def _converge(context: Context) -> tuple[Iterable[Action], datetime | None]:
    """Return the actions, and when a back-off ends."""
    progress, pods = context.progress, context.observed.pods
    if progress.finished:
        return _delete(pod for pod in pods if not pod.is_over), None
    old = [pod for pod in pods if not progress.active or pod.attempt != progress.attempt]
    if old or not progress.active:
        return _delete(_stopping(old)), None
    restart_at = parse_time(progress.restart_time) if progress.restart_time else None
    backs_off_until = restart_at if restart_at is not None and restart_at > context.now else None
    coordinator = next((pod for pod in pods if pod.component is Component.COORDINATOR), None)
    if coordinator is None:
        # Another pass at once sees it: it may be gone again before anything else happens.
        return (_create_coordinator(context), context.now) if backs_off_until is None else ((), backs_off_until)
    count = _num_peers(context.job.spec, num_wanted(context), context.decided.rewards.desired)
    unwanted = _delete(pod for pod in pods if _is_unwanted(pod, count, may_replace=backs_off_until is None))
    if backs_off_until is not None and not any(pod.terminal for pod in pods):
        return unwanted, backs_off_until  # What waits was removed by somebody else.
    return chain(unwanted, _create_peers(context, coordinator, count)), backs_off_until


def _is_unwanted(pod: PodView, count: dict[Component, int], *, may_replace: bool) -> bool:
    if pod.component is Component.COORDINATOR:
        return False
    if pod.index >= count[pod.component]:
        return True
    return pod.terminal and (may_replace or ended_by_cluster(pod))


def _stopping(pods: Sequence[PodView]) -> Sequence[PodView]:
    """Return the pods to stop, without workers and trainers while the coordinator needs them to save a checkpoint.

    Trainers end when the coordinator is gone, so a coordinator that is lost with its node does not keep their GPUs.
    """
    if not any(pod.component is Component.COORDINATOR and pod.phase == "Running" for pod in pods):
        return pods
    return [pod for pod in pods if pod.terminal or pod.component not in {Component.WORKER, Component.TRAINER}]


def _delete(pods: Iterable[PodView]) -> Iterator[DeletePod]:
    return (DeletePod(pod.name, pod.uid) for pod in pods if not pod.deleting)


def _create_coordinator(context: Context) -> Iterator[CreatePod]:
    pod = build.coordinator_pod(_as_started(context), context.config, context.progress.attempt)
    yield _creation(context, pod, Component.COORDINATOR, 0)


def _create_peers(context: Context, coordinator: PodView, count: dict[Component, int]) -> Iterator[CreatePod]:
    """Create the missing pods of the attempt, once the coordinator has an address; each is built when it is needed."""
    address, attempt = coordinator.ip, coordinator.attempt
    if address is None or not may_create_members(context):
        return
    job, present = _as_started(context), {pod.name for pod in context.observed.pods}
    tp_size = context.decided.assignment.baseline.tp_size
    builders: dict[Component, tuple[Callable[[str, int], str], _Build]] = {
        Component.WORKER: (names.worker_pod, partial(build.worker_pod, tp_size=tp_size)),
        Component.TRAINER: (names.trainer_pod, build.trainer_pod),
        Component.JUDGE: (names.judge_pod, build.judge_pod),
        Component.REWARD: (names.reward_pod, build.reward_pod),
        Component.ENVIRONMENT: (names.environment_pod, build.environment_pod),
    }
    for component, (name_of, pod) in builders.items():
        for index in range(count[component]):
            if name_of(Identity.of(job).name, index) not in present:
                manifest = pod(job, context.config, attempt, index, address)
                yield _creation(context, manifest, component, index)


def _creation(context: Context, manifest: dict[str, Any], component: Component, index: int) -> CreatePod:
    admission = context.observed.admission
    if admission is not None and admission.placements:
        placement = admission.placements.get(pod_set(context.job, component, index), PodPlacement())
        manifest = place_pod(manifest, placement)
    kind = context.job.spec.scheduling.pod_group
    if kind is not None and component is not Component.COORDINATOR:
        group = names.pod_group(Identity.of(context.job).name)
        manifest = join_group(manifest, kind, group, context.job.spec.scheduling.group_scheduler)
    return CreatePod(avoid_nodes(manifest, context.progress.crash_nodes))


def _as_started(context: Context) -> RLJob:
    """Return the job with the image of its attempt, so that an attempt has one version of the runtime."""
    settings = context.decided.settings
    assert settings is not None, "an active job has settings"
    return context.job.model_copy(update={"spec": context.job.spec.model_copy(update={"image": settings.image})})


def _losses(context: Context) -> tuple[Event, ...]:
    """Report pods that are deleted or disrupted, when the number of ready pods falls."""
    before, progress = context.job.status, context.progress
    counts = (before.workers, before.trainers, before.rewards, before.judges, before.environments)
    num_ready = sum(pod.ready for pod in context.pods if pod.component is not Component.COORDINATOR)
    if not progress.active or before.attempt != progress.attempt or sum(one.ready for one in counts) <= num_ready:
        return ()
    return tuple(
        Event(
            "Warning", EventReason.POD_LOST, f"{describe_end(pod)}; it is replaced when it is gone", f"lost-{pod.uid}"
        )
        for pod in context.observed.pods
        if pod.attempt == progress.attempt and (pod.deleting or pod.disruption) and _is_wanted(context, pod)
    )


def _is_wanted(context: Context, pod: PodView) -> bool:
    count = {Component.REWARD: context.decided.rewards.desired, Component.WORKER: num_granted(context)}
    return pod.index < count.get(pod.component, pod.index + 1)
