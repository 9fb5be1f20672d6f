"""From where a job stands to what to do about its pods: which to create, which to delete, when to look again."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain, islice
from typing import Any, Final

from longshore.api import names
from longshore.api.names import Component
from longshore.api.rljob import RLJob
from longshore.api.spec import CleanPodPolicy, RLJobSpec
from longshore_operator import pods as build
from longshore_operator.clock import parse
from longshore_operator.identity import Identity
from longshore_operator.lifecycle import Ending, Progress, ending
from longshore_operator.observed import PodView
from longshore_operator.plan import CreatePod, DeletePod, OperatorConfig

POD_BATCH: Final = 32
"""Pods that one pass makes or deletes."""

_Build = Callable[[RLJob, OperatorConfig, int, int, str], dict[str, Any]]
"""Job, operator, attempt, index and coordinator's address -> the manifest of a pod."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was decided about the pods of the attempt, beyond the spec."""

    tp_size: int
    num_rewards: int
    spec_hash: str
    """Fingerprint of the settings that new pods are made for."""


@dataclass(frozen=True, slots=True)
class PodActions:
    """What to do about the pods."""

    create: tuple[CreatePod, ...] = ()
    delete: tuple[DeletePod, ...] = ()
    wake_at: datetime | None = None
    """When a back-off ends, or now if there is more to do."""


def converge(
    job: RLJob, config: OperatorConfig, progress: Progress, pods: tuple[PodView, ...], wanted: Wanted, now: datetime
) -> PodActions:
    """Actions that bring the pods to what `progress` asks for.

    A pod is created only when no pod of an earlier attempt exists any more, so two attempts never run at once. At most
    `POD_BATCH` pods are made or deleted; where that is not all, `wake_at` is `now`.
    """
    return _batch(_converge(job, config, progress, pods, wanted, now), now)


def _converge(
    job: RLJob, config: OperatorConfig, progress: Progress, pods: tuple[PodView, ...], wanted: Wanted, now: datetime
) -> PodActions:
    if progress.finished:
        keeps_ended = job.spec.clean_pod_policy is CleanPodPolicy.RUNNING
        return PodActions(delete=_delete(pod for pod in pods if not (keeps_ended and pod.terminal)))
    if progress.suspended:
        return PodActions(delete=_delete(pods))
    old = tuple(pod for pod in pods if pod.attempt != progress.attempt)
    if old:
        return PodActions(delete=_delete(old))
    return _converge_attempt(job, config, progress, pods, wanted, now)


def _converge_attempt(
    job: RLJob, config: OperatorConfig, progress: Progress, pods: tuple[PodView, ...], wanted: Wanted, now: datetime
) -> PodActions:
    restart_at = parse(progress.restart_time) if progress.restart_time else None
    waits = restart_at is not None and restart_at > now
    coordinator = next((pod for pod in pods if pod.component is Component.COORDINATOR), None)
    if coordinator is None:
        if waits:
            return PodActions(wake_at=restart_at)
        pod = build.coordinator_pod(job, config, progress.attempt)
        return PodActions(create=(CreatePod(build.marked(pod, wanted.spec_hash)),))
    unwanted = tuple(pod for pod in pods if _is_unwanted(job, pod, wanted, may_replace=not waits))
    if restart_at is not None:
        return PodActions(delete=_delete(unwanted), wake_at=restart_at if waits else None)
    create = _missing_peers(job, config, coordinator, wanted, frozenset(pod.name for pod in pods))
    return PodActions(create=create, delete=_delete(unwanted))


def _is_unwanted(job: RLJob, pod: PodView, wanted: Wanted, *, may_replace: bool) -> bool:
    if pod.component is Component.COORDINATOR:
        return False
    if pod.index >= num_peers(job.spec, wanted.num_rewards)[pod.component]:
        return True
    if not pod.terminal:
        return False
    return may_replace or ending(pod) is Ending.INTERRUPTED


def num_peers(spec: RLJobSpec, num_rewards: int) -> dict[Component, int]:
    """Pods beside the coordinator."""
    return {
        Component.WORKER: spec.workers.replicas,
        Component.TRAINER: spec.trainer_workers.replicas if spec.trainer_workers is not None else 0,
        Component.JUDGE: spec.reward.num_judge_pods,
        Component.REWARD: num_rewards,
    }


def _missing_peers(
    job: RLJob, config: OperatorConfig, coordinator: PodView, wanted: Wanted, present: frozenset[str]
) -> tuple[CreatePod, ...]:
    """Pods other than the coordinator that the attempt lacks: they are made once there is an address to join.

    At most one more than a batch is built, which tells that there are more.
    """
    address, attempt = coordinator.ip, coordinator.attempt
    if address is None:
        return ()
    name, count = Identity.of(job).name, num_peers(job.spec, wanted.num_rewards)

    def missing(component: Component, name_of: Callable[[str, int], str], pod: _Build) -> Iterator[CreatePod]:
        for index in range(count[component]):
            if name_of(name, index) not in present:
                manifest = pod(job, config, attempt, index, address)
                yield CreatePod(build.marked(manifest, wanted.spec_hash))

    all_missing = chain(
        missing(Component.WORKER, names.worker_pod, partial(build.worker_pod, tp_size=wanted.tp_size)),
        missing(Component.TRAINER, names.trainer_pod, build.trainer_pod),
        missing(Component.JUDGE, names.judge_pod, build.judge_pod),
        missing(Component.REWARD, names.reward_pod, build.reward_pod),
    )
    return tuple(islice(all_missing, POD_BATCH + 1))


def _batch(work: PodActions, now: datetime) -> PodActions:
    """What one pass does: as much as keeps it short, so that other jobs have their turn."""
    delete = work.delete[:POD_BATCH]
    create = work.create[: POD_BATCH - len(delete)]
    if (len(delete), len(create)) == (len(work.delete), len(work.create)):
        return work
    return PodActions(create, delete, wake_at=now)


def _delete(pods: Iterable[PodView]) -> tuple[DeletePod, ...]:
    return tuple(DeletePod(pod.name, pod.uid) for pod in pods if not pod.deleting)
