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
from longshore_runtime.rollout.reward_logs import RewardLogs
from longshore_runtime.rollout.reward_workers import RewardLane
from longshore_runtime.rollout.worker_hosts import JoinedHosts, LocalWorkers, WorkerHost

AddressOf = Callable[[int], str | None]
"""Index of a reward pod -> its address, or None while it has none."""


def reward_lanes(reward: Reward, workers: Workers, address_of: AddressOf) -> list[RewardLane]:
    """Return a lane each for functions that compute, functions that wait, and colocated judges, if there are any.

    So what waits for an endpoint takes no worker from what computes.
    """
    may_grow = reward.most_pods > reward.pods
    lanes = []
    for functions, per_pod, decides in (
        (reward.computing, reward.workers_per_pod, not reward.is_sized_by_waiting),
        (reward.waiting, reward.requests_per_pod, reward.is_sized_by_waiting),
    ):
        if functions:
            lanes.append(RewardLane(functions, _hosts(reward, per_pod, address_of), is_sized=may_grow and decides))
    colocated = tuple(function for function in reward.functions if function.is_colocated)
    if colocated:
        lanes.append(RewardLane(colocated, RayWorkers(judge_processes(reward, workers))))
    return lanes


def reward_logs(reward: Reward, address_of: AddressOf, output_dir: Path, attempt: int) -> RewardLogs:
    """Begin to copy the logs of the job's reward pods into its output directory."""
    token = Path(os.environ[contract.ENV_REWARD_TOKEN])
    return RewardLogs(reward.most_pods, address_of, token, output_dir / "logs", attempt)


def judge_processes(reward: Reward, workers: Workers) -> list[ActorPlacement]:
    """Return one process for every engine GPU, with all judges that run there."""
    limit = memory_limit(reward.functions)
    return [placement(place.worker, gpus=place.gpus, environment=limit) for place in engine_places(workers, tp_size=1)]


def _hosts(reward: Reward, per_pod: int, address_of: AddressOf) -> WorkerHost:
    """Return the workers of a lane in reward pods; if a job may have no pods, workers in this pod come first."""
    hosts: list[WorkerHost] = [] if reward.pods else [LocalWorkers(per_pod)]
    if reward.most_pods:
        token = Path(os.environ[contract.ENV_REWARD_TOKEN])
        hosts.append(PodWorkers(reward.most_pods, per_pod, address_of, token))
    return JoinedHosts(hosts)
