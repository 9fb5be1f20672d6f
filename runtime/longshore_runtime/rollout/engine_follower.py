"""The part of an engine in a pod that is not its first, as a Ray actor."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ray

from longshore_runtime.backends.engine_spec import EnginePart, EngineSpec
from longshore_runtime.cluster.placement import set_environment
from longshore_runtime.storage import JobStorage


class FollowerActor:
    """Runs the ranks of one pod. They get all commands from the engine in the first pod, by vLLM's own queues."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        set_environment(environment)

    def follow(
        self, spec: EngineSpec, model: str, output: str, rank: int, num_pods: int, meeting: tuple[str, int]
    ) -> None:
        """Run until a process ends; raises EngineStartError or EngineDied."""
        from longshore_runtime.backends.engines import follow_engine

        storage = JobStorage.from_env(output)
        follow_engine(replace(spec, part=EnginePart(rank, num_pods, *meeting)), storage.resolve(model))


RemoteFollower: Any = ray.remote(num_cpus=0, max_restarts=0)(FollowerActor)
