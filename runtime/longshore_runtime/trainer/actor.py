"""A trainer replica as a Ray actor."""

import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import ray

from longshore.api import contract
from longshore.api.training import TrainerBackend
from longshore_runtime.backends.world import World
from longshore_runtime.durable import sync_tree
from longshore_runtime.storage import JobStorage
from longshore_runtime.types import GradientSums, Sample, Trainer, TrainerOptions, UpdateReport, Weights
from longshore_runtime.weights import checksum


class TrainerStartError(Exception):
    """The trainer could not start: one sentence."""


class _TrainerActor:
    """Holds one replica. Paths are relative to the storage, which every pod mounts where it likes."""

    def __init__(self) -> None:
        self._trainer: Trainer | None = None
        self._storage: JobStorage | None = None

    def rendezvous(self) -> tuple[str, int]:
        """Address and a free port of this pod, where the replicas meet."""
        host = os.environ[contract.ENV_POD_IP]
        with socket.socket() as probe:
            probe.bind((host, 0))
            return host, probe.getsockname()[1]

    def start(
        self,
        backend: TrainerBackend,
        options: TrainerOptions,
        model: str,
        output: str,
        rendezvous: tuple[str, int],
        world_size: int,
        *,
        rank: int,
    ) -> None:
        """Join the world and load the initial weights; raises TrainerStartError."""
        self._storage = JobStorage.from_env(output)
        directory = self._storage.resolve(model)
        world = World(rank, world_size, *rendezvous)
        if backend is TrainerBackend.FAKE:
            from longshore_runtime.backends.fake_trainer import FakeTrainer

            self._trainer = FakeTrainer(directory, options, world)
            return
        from longshore_runtime.backends.torch_trainer import TorchTrainer

        try:
            self._trainer = TorchTrainer(directory, options, world)
        except (OSError, ValueError, KeyError) as error:
            raise TrainerStartError(f"model: {model!r} cannot be loaded for training ({error})") from error

    def accumulate(self, samples: Sequence[Sample]) -> tuple[GradientSums, float]:
        """Sums, and the seconds that they took."""
        started_s = time.monotonic()
        return self._running.accumulate(samples), time.monotonic() - started_s

    def update(self, denominator: float) -> tuple[UpdateReport, float]:
        """The report of an optimizer step, and the seconds that it took."""
        started_s = time.monotonic()
        return self._running.update(denominator), time.monotonic() - started_s

    def weights(self) -> tuple[Weights, str]:
        """Current weights and their checksum, as two objects."""
        weights = self._running.weights()
        return weights, checksum(weights)

    def save(self, directory: str) -> None:
        self._running.save(self._path(directory))
        sync_tree(self._path(directory))

    def load(self, directory: str) -> None:
        self._running.load(self._path(directory))

    @ray.method(concurrency_group="watch")
    def lasts(self) -> None:
        """Never returns: its failure tells that this replica is gone."""
        threading.Event().wait()

    def discard(self) -> None:
        self._running.discard()

    def sleep(self) -> None:
        self._running.sleep()

    def wake(self) -> None:
        self._running.wake()

    @property
    def _running(self) -> Any:
        assert self._trainer is not None, "start comes first"
        return self._trainer

    def _path(self, relative: str) -> Any:
        assert self._storage is not None, "start comes first"
        return self._storage.resolve(relative)


TrainerActor: Any = ray.remote(num_cpus=0, max_restarts=0, concurrency_groups={"watch": 1})(_TrainerActor)
"""`lasts` has a thread of its own; everything else runs in another, call by call, in the order of the calls."""
