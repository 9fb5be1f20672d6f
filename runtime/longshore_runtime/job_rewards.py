"""The rewards of a job: lanes of reward functions, with the workers that score for each lane."""

import os
from collections.abc import Callable
from pathlib import Path

from longshore.api import contract
from longshore.api.pods import Workers
from longshore.api.reward import Reward
from longshore_runtime.cluster.placement import ActorPlacement, placement
from longshore_runtime.places import engine_places
from longshore_runtime.rewards.judge import memory_limit
from longshore_runtime.rollout.pod_workers import PodWorkers
from longshore_runtime.rollout.ray_workers import RayWorkers
from longshore_runtime.rollout.reward_workers import RewardLane
from longshore_runtime.rollout.worker_hosts import JoinedHosts, LocalWorkers, WorkerHost

AddressOf = Callable[[int], str | None]
"""Index of a reward pod -> its address, or None while it has none."""


def reward_lanes(reward: Reward, workers: Workers, address_of: AddressOf) -> list[RewardLane]:
    """Return a lane for colocated judges and one for all other functions; a lane without functions is left out."""
    colocated = tuple(function for function in reward.functions if function.is_colocated)
    others = tuple(function for function in reward.functions if not function.is_colocated)
    lanes = []
    if others:
        lanes.append(RewardLane(others, _scoring_workers(reward, address_of), is_sized=reward.most_pods > reward.pods))
    if colocated:
        lanes.append(RewardLane(colocated, RayWorkers(judge_processes(reward, workers))))
    return lanes


def judge_processes(reward: Reward, workers: Workers) -> list[ActorPlacement]:
    """Return one process for every engine GPU, with all judges that run there."""
    limit = memory_limit(reward.functions)
    return [placement(place.worker, gpus=place.gpus, environment=limit) for place in engine_places(workers, tp_size=1)]


def _scoring_workers(reward: Reward, address_of: AddressOf) -> WorkerHost:
    """Return the workers in reward pods; if a job may have no pods, workers in this pod come first."""
    hosts: list[WorkerHost] = [] if reward.pods else [LocalWorkers(reward.workers_per_pod)]
    if reward.most_pods:
        token = Path(os.environ[contract.ENV_REWARD_TOKEN])
        hosts.append(PodWorkers(reward.most_pods, reward.workers_per_pod, address_of, token))
    return JoinedHosts(hosts)
