"""The pods of a job by kind: how many there are at least and at most, and what each of them requests."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from longshore.api.names import Component
from longshore.api.rljob import RLJob
from longshore_operator import pods as build
from longshore_operator.plan import OperatorConfig


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pods that are alike: those of one component, or of one judge."""

    name: str
    component: Component
    num_least: int
    """Pods without which the job cannot run."""
    num_most: int
    """Pods that it may have at once."""
    pod: dict[str, Any]
    """One of them."""


def pod_set(job: RLJob, component: Component, index: int) -> str:
    """Name of the pod set that a pod belongs to."""
    if component is not Component.JUDGE:
        return component.value
    function, _ = job.spec.reward.judge_pod(index)
    return f"judge-{job.spec.reward.functions.index(function)}"


def pod_sets(job: RLJob, config: OperatorConfig) -> Iterator[PodSet]:
    """Yield every kind of pod that the job has; roles change within pods, so the kinds stay the same."""
    spec, workers, rewards = job.spec, job.spec.workers, job.spec.reward
    yield PodSet(Component.COORDINATOR.value, Component.COORDINATOR, 1, 1, build.coordinator_pod(job, config, 1))
    worker = build.worker_pod(job, config, 1, 0, "", 1)
    yield PodSet(Component.WORKER.value, Component.WORKER, workers.least_replicas, workers.replicas, worker)
    if spec.trainer_workers is not None:
        count, trainer = spec.trainer_workers.replicas, build.trainer_pod(job, config, 1, 0, "")
        yield PodSet(Component.TRAINER.value, Component.TRAINER, count, count, trainer)
    if rewards.most_pods:
        reward = build.reward_pod(job, config, 1, 0, "")
        yield PodSet(Component.REWARD.value, Component.REWARD, rewards.pods, rewards.most_pods, reward)
    counted: dict[str, int] = {}
    first: dict[str, int] = {}
    for index in range(rewards.num_judge_pods):
        name = pod_set(job, Component.JUDGE, index)
        counted[name] = counted.get(name, 0) + 1
        first.setdefault(name, index)
    for name, count in counted.items():
        judge = build.judge_pod(job, config, 1, first[name], "")
        yield PodSet(name, Component.JUDGE, count, count, judge)
