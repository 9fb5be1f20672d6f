"""The reward workers of a job: which functions share them, and where they run."""

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from longshore.api import contract
from longshore.api.names import Component
from longshore.api.pods import Workers
from longshore.api.reward import Reward
from longshore_runtime.cluster.placement import ActorPlacement, placement
from longshore_runtime.places import engine_places
from longshore_runtime.rewards.kinds.judge import memory_limit
from longshore_runtime.rewards.transports.pod import AddressOf, PodConnections, ServingPods
from longshore_runtime.rewards.transports.ray_actor import RayTransport
from longshore_runtime.rewards.transports.thread import ScoringThread, pod_places
from longshore_runtime.rewards.transports.transport import WorkerPlace
from longshore_runtime.rewards.workers import WorkerGroup


def reward_pods(reward: Reward, address_of: AddressOf) -> ServingPods | None:
    """Return the reward pods that a job may have, or None if it never has any.

    Args:
        address_of: returns the address of a reward pod by its index.
    """
    if not reward.most_pods:
        return None
    token = Path(os.environ[contract.ENV_REWARD_TOKEN])
    return ServingPods(Component.REWARD, reward.most_pods, address_of, lambda _: token, contract.REWARD_PORT)


def worker_groups(
    reward: Reward, workers: Workers, pods: ServingPods | None, resources: ExitStack
) -> list[WorkerGroup]:
    """Return a group each for functions that compute, functions that wait, and colocated judges, if there are any.

    So what waits for an endpoint takes no worker from what computes. If a job may have no reward pods, workers in this
    pod come first.

    Args:
        pods: reward pods that the job may have.
        resources: closes the connections to reward pods.
    """
    may_grow = reward.most_pods > reward.pods
    connections = None
    if pods is not None:
        connections = PodConnections(pods)
        resources.callback(connections.close)
    groups = []
    for functions, per_pod, decides in (
        (reward.computing, reward.workers_per_pod, not reward.is_sized_by_waiting),
        (reward.waiting, reward.requests_per_pod, reward.is_sized_by_waiting),
    ):
        if functions:
            places = [] if reward.pods else [WorkerPlace("this pod", ScoringThread)] * per_pod
            if connections is not None:
                places += pod_places(connections, per_pod)
            groups.append(WorkerGroup(functions, places, is_sized=may_grow and decides))
    colocated = tuple(function for function in reward.functions if function.is_colocated)
    if colocated:
        groups.append(WorkerGroup(colocated, list(map(_place, judge_processes(reward, workers)))))
    return groups


def judge_processes(reward: Reward, workers: Workers) -> list[ActorPlacement]:
    """Return one process for every engine GPU, with all judges that run there."""
    limit = memory_limit(reward.functions)
    return [
        placement(place.worker, gpus=place.gpus, environment=limit) for (place,) in engine_places(workers, tp_size=1)
    ]


def _place(process: ActorPlacement) -> WorkerPlace:
    return WorkerPlace(str(process.options["label_selector"]), partial(RayTransport, process.remote))
