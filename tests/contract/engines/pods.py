"""Worker pods as Ray nodes, and the engine pool of a job in them."""

import contextlib
import queue
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from longshore.api import contract
from longshore.api.names import Component
from longshore_runtime.cluster.placement import node_labels
from longshore_runtime.cluster.ray_environment import RAY_ENVIRONMENT
from longshore_runtime.rollout.engine_pool import EnginePool
from longshore_runtime.rollout.events import Event, ResponsesEnded
from longshore_runtime.types import Completion, Request
from tests.contract.engines.harness import request

LIMIT_S = 120.0
REPOSITORY = Path(__file__).parents[3]


@contextlib.contextmanager
def worker_pods(storage: Path, count: int) -> Iterator["Pods"]:
    """Ray with so many pods that mount this storage."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in RAY_ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        patch.setenv(contract.ENV_STORAGE, str(storage))
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        try:
            ray.init(address=cluster.address, log_to_driver=False)
            pods = Pods(cluster)
            for index in range(count):
                pods.join(index)
            yield pods
        finally:
            ray.shutdown()
            cluster.shutdown()


@dataclass
class Pods:
    """Ray nodes with the labels of worker pods."""

    cluster: Cluster
    nodes: dict[int, Any] = field(default_factory=dict)

    def join(self, index: int) -> None:
        """A pod starts."""
        self.nodes[index] = self.cluster.add_node(num_cpus=0, labels=node_labels(Component.WORKER, index))

    def leave(self, index: int) -> None:
        """A pod is gone, with all that ran in it."""
        self.cluster.remove_node(self.nodes.pop(index))


@dataclass
class Job:
    """A pool, the driver's events, and what people are told."""

    pool: EnginePool
    events: "queue.SimpleQueue[Event]"
    notices: list[tuple[str, str]] = field(default_factory=list)

    def lose(self, engine: int) -> None:
        """An engine's process dies."""
        ray.kill(self.pool._fleet[engine]._actor)

    def wait_lost(self, engine: int) -> None:
        """Until the pool knows that an engine is gone."""
        handle = self.pool._fleet[engine]
        while not handle.ended:
            with pytest.raises(queue.Empty):
                self.events.get(timeout=0.05)

    def wait_started(self, engine: int) -> None:
        """Until an engine is there again, with or without weights."""
        while not self.pool._fleet[engine].alive:
            with pytest.raises(queue.Empty):
                self.events.get(timeout=0.05)

    def next_event(self) -> Event:
        """Whatever happens next, apart from responses."""
        while isinstance(event := self.events.get(timeout=LIMIT_S), ResponsesEnded):
            pass
        return event

    def finish(self, engine: int, wanted: Request) -> Completion:
        """The response of an engine to a request."""
        self.pool.add(engine, [wanted])
        return self.next_response(engine)

    def next_response(self, engine: int) -> Completion:
        """The next thing that happens, which must be the end of a response on this engine."""
        event = self.events.get(timeout=LIMIT_S)
        assert isinstance(event, ResponsesEnded), event
        assert event.engine == engine
        (completion,) = event.completions
        return completion

    def samples(self, engine: int, policy_version: int) -> None:
        """It takes a request and answers with tokens of this policy version."""
        completion = self.finish(engine, request(max_tokens=3))
        assert [run.policy_version for run in completion.runs] == [policy_version]
