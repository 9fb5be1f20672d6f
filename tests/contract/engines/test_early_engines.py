"""Engines start beside the warm start of the built-in model."""

import queue
from pathlib import Path
from typing import Any

import pytest
import ray
from prometheus_client import CollectorRegistry

from longshore.api.names import Component
from longshore.api.runtime_status import RuntimeActivity, RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore_runtime.cluster.worker_imports import WorkerImports
from longshore_runtime.session.session import Session
from longshore_runtime.session.warm_start import DIRECTORY
from longshore_runtime.storage import job_storage
from tests.ray_pods import Pods, worker_pods
from tests.unit.runtime.elastic_parts import Known

IMPORTS = WorkerImports(("longshore_runtime.backends.torch_trainer",), {"OMP_NUM_THREADS": "1"})
NUM_STEPS = 3
SPEC: dict[str, Any] = {
    "model": {"builtin": "Tiny", "maxContextTokens": 256},
    "data": {"builtin": "Counting"},
    "reward": {"pods": 0, "functions": [{"name": "task", "kind": "Task"}]},
    "algorithm": {
        "warmStart": {"steps": NUM_STEPS},
        "steps": 1,
        "promptsPerStep": 4,
        "responsesPerPrompt": 2,
        "maxResponseTokens": 64,
    },
    "rollout": {"engine": {"backend": "Fake"}},
    "workers": {"replicas": 1, "gpusPerPod": 1, "gpuResourceName": "longshore.dev/pretend-gpu"},
    "storage": {"claimName": "shared"},
}


class Sink:
    """All that was reported."""

    def __init__(self) -> None:
        self.statuses: list[RuntimeStatus] = []

    def report(self, status: RuntimeStatus) -> None:
        self.statuses.append(status)

    def close(self) -> None:
        """Nothing to close."""


def session(pods: Pods, sink: Sink) -> Session:
    first = RuntimeStatus(attempt=1, activity=RuntimeActivity.WAIT_FOR_WORKERS)
    job = RLJobSpec.model_validate(SPEC)
    settings = pods.settings(Component.COORDINATOR, 0)
    return Session(settings, job, CollectorRegistry(), sink, first, queue.SimpleQueue(), Known())


def states_of_engines() -> list[str]:
    """What Ray says of the engines that were ever started."""
    actors = ray._private.state.actors().values()
    return [actor["State"] for actor in actors if "EngineActor" in str(actor["ActorClassName"])]


def test_engines_start_beside_the_warm_start_and_end_with_it_if_it_fails(tmp_path: Path) -> None:
    """The first session finds a file in the place of the directory that it has to write into."""
    with worker_pods(tmp_path, 1, IMPORTS) as pods:
        in_the_way = job_storage(pods.settings(Component.COORDINATOR, 0), None).output_dir / DIRECTORY
        in_the_way.parent.mkdir(parents=True, exist_ok=True)
        in_the_way.touch()
        failed = Sink()
        with pytest.raises((FileExistsError, NotADirectoryError), match=DIRECTORY), session(pods, failed) as one:
            one.build()
        assert states_of_engines() == ["DEAD"]
        assert {status.activity for status in failed.statuses} == {RuntimeActivity.PREPARE_MODEL}
        in_the_way.unlink()
        sink = Sink()
        with session(pods, sink) as one:
            parts = one.build()
            assert parts.trainers.num_replicas == 1
        (engines, *_), (warm_start, *_) = (
            [number for number, status in enumerate(sink.statuses) if getattr(status, field)]
            for field in ("tp_size", "warm_start")
        )
        assert engines < warm_start, "the engines had begun to start"
        report = sink.statuses[-1].warm_start
        assert report is not None and report.step == NUM_STEPS
