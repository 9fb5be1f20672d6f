"""The pods of a job by kind: how many there are at least and at most, and what the scheduler counts for each."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from longshore.api.environment import environment_pods
from longshore.api.names import Component
from longshore.api.rljob import RLJob
from longshore_kube.quantities import parse_quantity
from longshore_operator import pods as build
from longshore_operator.config import OperatorConfig


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pods that are alike: those of one component, or of one judge or environment."""

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
    if component is Component.ENVIRONMENT:
        environments = job.spec.environments
        return f"environment-{environments.index(environment_pods(environments)[index])}"
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
    for component, num_pods, pod in (
        (Component.JUDGE, rewards.num_judge_pods, build.judge_pod),
        (Component.ENVIRONMENT, len(environment_pods(spec.environments)), build.environment_pod),
    ):
        counted: dict[str, int] = {}
        first: dict[str, int] = {}
        for index in range(num_pods):
            name = pod_set(job, component, index)
            counted[name] = counted.get(name, 0) + 1
            first.setdefault(name, index)
        for name, count in counted.items():
            yield PodSet(name, component, count, count, pod(job, config, 1, first[name], ""))


def requests(pod: Mapping[str, Any]) -> dict[str, Fraction]:
    """Return the amounts that a pod requests, by resource.

    They are those of the pod as a whole if it names any, and else those of its containers and sidecars together or of
    its largest init container.
    """
    sidecars: dict[str, Fraction] = defaultdict(Fraction)
    peak: dict[str, Fraction] = defaultdict(Fraction)
    for container in pod.get("initContainers") or ():
        is_sidecar = container.get("restartPolicy") == "Always"
        for resource, amount in _requested(container).items():
            peak[resource] = max(peak[resource], sidecars[resource] + amount)
            sidecars[resource] += amount if is_sidecar else 0
    for container in pod["containers"]:
        for resource, amount in _requested(container).items():
            sidecars[resource] += amount
    counted = {resource: max(sidecars[resource], peak[resource]) for resource in sidecars.keys() | peak.keys()}
    whole = pod.get("resources") or {}
    counted = _amounts(whole.get("limits") or {}) | counted | _amounts(whole.get("requests") or {})
    overhead = _amounts(pod.get("overhead") or {})
    return {
        resource: counted.get(resource, Fraction(0)) + overhead.get(resource, 0)
        for resource in counted.keys() | overhead.keys()
    }


def _requested(container: Mapping[str, Any]) -> dict[str, Fraction]:
    """Return the requests of a container; a limit without a request is one."""
    resources = container.get("resources") or {}
    given = (resources.get("limits") or {}) | (resources.get("requests") or {})
    return _amounts(given)


def _amounts(given: Mapping[str, Any]) -> dict[str, Fraction]:
    """Return amounts without those that are null."""
    return {resource: parse_quantity(value) for resource, value in given.items() if value is not None}
