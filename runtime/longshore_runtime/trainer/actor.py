"""A rank of the trainer as a Ray actor."""

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final, cast

import ray

from longshore.api.objectives.with_critic import ObjectiveWithCritic
from longshore.api.training import TrainerBackend
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.backends.trainer_protocol import Sample, Trainer, TrainerOptions, UpdateReport, ValuingTrainer
from longshore_runtime.backends.trainer_spec import TrainerSpec
from longshore_runtime.backends.trainers import create_trainer
from longshore_runtime.backends.work_meter import WorkMeter
from longshore_runtime.backends.world import World
from longshore_runtime.cluster.meeting import ReservedPort
from longshore_runtime.cluster.placement import set_environment
from longshore_runtime.errors import LogProbMismatch, WeightsUnavailable
from longshore_runtime.process.durable import apply_umask, sync_tree
from longshore_runtime.storage import JobStorage
from longshore_runtime.trainer.acceptance import require_trainable
from longshore_runtime.trainer.saved_by import require_own, sign
from longshore_runtime.trajectories.trajectory import LogProbs
from longshore_runtime.weights.buckets import buckets, checksums, combined_checksum
from longshore_runtime.weights.shared import BroadcastGroup, BucketPart
from longshore_runtime.weights.slices import Bucket


class TrainerActor:
    """A replica, or a rank's part of one. Paths are relative to the storage, whose mount point differs by pod."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        set_environment(environment)
        self._spec: TrainerSpec | None = None
        self._rank = 0
        self._reserved: ReservedPort | None = None
        self._trainer: Trainer | None = None
        self._meter = WorkMeter()
        self._refusal: LogProbMismatch | None = None
        """Reason why an update was refused: nothing is computed until the gradients are discarded."""
        self._sender: Any = None
        self._storage: JobStorage | None = None
        self._saver = ThreadPoolExecutor(1, "save")
        self._saving: Future[None] | None = None

    def rendezvous(self) -> tuple[str, int]:
        """Return the address and a free port of this pod, where the ranks meet. The port stays reserved."""
        self._reserved = ReservedPort.of_this_pod()
        return self._reserved.address

    def start(
        self, spec: TrainerSpec, model: str, output: str, rendezvous: tuple[str, int], world_size: int, *, rank: int
    ) -> None:
        """Join the world and load the initial weights; raises UserError."""
        self._spec = spec
        self._rank = rank
        self._storage = JobStorage.from_env(output)
        world = World(rank, world_size, *rendezvous)
        objective = spec.options.objective
        value_model = objective.value_model or model if isinstance(objective, ObjectiveWithCritic) else None
        teacher, critic = (None if one is None else self._storage.resolve(one) for one in (spec.teacher, value_model))
        self._trainer = create_trainer(spec, self._storage.resolve(model), model, world, self._meter, teacher, critic)

    def accumulate(self, samples: Sequence[Sample]) -> tuple[GradientSums, float]:
        """Return the sums, and the seconds that they took."""
        started_s = time.monotonic()
        with self._meter.call(len(samples)):
            self._require_accepted()
            return self._running.accumulate(samples), time.monotonic() - started_s

    def log_probs(self, samples: Sequence[Sample]) -> tuple[Mapping[int, LogProbs], float]:
        """Return the log-probabilities (see `Trainer.log_probs`), and the seconds that they took."""
        started_s = time.monotonic()
        with self._meter.call(len(samples)):
            self._require_accepted()
            return self._running.log_probs(samples), time.monotonic() - started_s

    def values(self, samples: Sequence[Sample]) -> tuple[Mapping[int, LogProbs], float]:
        """Return the critic's values (see `ValuingTrainer`), and the seconds that they took."""
        started_s = time.monotonic()
        with self._meter.call(len(samples)):
            self._require_accepted()
            return cast(ValuingTrainer, self._running).values(samples), time.monotonic() - started_s

    def compare(self, samples: Sequence[Sample], denominator: float) -> float:
        """See `Trainer.compare`."""
        return self._running.compare(samples, denominator)

    def update(
        self, denominator: float, max_mismatch: float | None, passes: Sequence[Any]
    ) -> tuple[UpdateReport, float]:
        """Return the report of an optimizer step, and the seconds that it took.

        Args:
            passes: references to what `accumulate` returned for everything that the update consists of, each
                sample once. Ray resolves references that are arguments themselves before it sends a call, and sends no
                later call meanwhile: `num_computed` would be answered only after the passes.

        Raises:
            LogProbMismatch, UserError: see `require_trainable`; on every rank, and in later calls until `discard`.
        """
        self._require_accepted()
        results: list[tuple[GradientSums, float]] = ray.get(list(passes))
        try:
            require_trainable((sums for sums, _ in results), max_mismatch, self._options.learning_rate_field)
        except LogProbMismatch as refusal:
            self._refusal = refusal
            raise
        self._let_save_end()
        started_s = time.monotonic()
        return self._running.update(denominator), time.monotonic() - started_s

    def policy_version(self) -> int:
        """Return the number of optimizer steps so far."""
        return self._running.policy_version

    @ray.method(num_returns="streaming")
    def weights(self, max_bucket_bytes: int, policy_version: int) -> Iterator[Bucket | str]:
        """Yield buckets of the current weights, then their checksum.

        Only the rank that speaks for its replica yields buckets.

        Raises:
            WeightsUnavailable: they are not of this version.
        """
        self._require(policy_version)
        parts = []
        for bucket in buckets(self._running.weights(), max_bucket_bytes):
            parts.append(checksums(bucket))
            yield bucket
        _free_gpu_memory()
        yield combined_checksum(parts)

    def begin_sending(self, max_bucket_bytes: int, policy_version: int, in_pieces: bool, is_read: bool) -> None:
        """Prepare `fill` to write the current weights, if `is_read` where an engine on this rank's GPU reads them.

        `in_pieces`: see `Trainer.tensors`.

        Raises:
            WeightsUnavailable: they are not of this version.
        """
        from longshore_runtime.backends.devices import compute_device
        from longshore_runtime.backends.weight_sender import WeightSender

        self._require(policy_version)
        self.end_sending()
        tensors = self._running.tensors(in_pieces=in_pieces)
        self._sender = WeightSender(tensors, compute_device(), max_bucket_bytes, is_read=is_read)

    def fill(self, in_bfloat16: bool) -> BucketPart | None:
        """Write and return the next bucket, on all ranks of a replica together; None: there are no more.

        This overwrites the last bucket but one. `in_bfloat16`: see `WeightSender.fill`.
        """
        part: BucketPart | None = self._sender.fill(in_bfloat16=in_bfloat16)
        return part

    def join_engines(self, channel: BroadcastGroup) -> None:
        """Meet engines that this rank broadcasts to; raises RuntimeError when one does not come."""
        self._sender.join(channel)

    def broadcast(self) -> None:
        """Send the bucket of the last `fill` to the engines; raises RuntimeError when one is lost."""
        self._sender.broadcast()

    def end_sending(self) -> None:
        """Give the memory of the sender back, on a GPU to other processes; engines have let go of it."""
        if self._sender is not None:
            self._sender.close()
        self._sender = None

    def begin_save(self, directory: str) -> None:
        """Begin to save the trainer's part of a checkpoint; `wait_saved` tells of its end."""
        self._let_save_end()
        path = self._path(directory)
        write = self._running.begin_save(path)
        self._saving = self._saver.submit(write)
        _free_gpu_memory()

    @ray.method(concurrency_group="save")
    def wait_saved(self) -> None:
        """Wait for the files of this rank; raises what has failed."""
        assert self._saving is not None, "`begin_save` comes first"
        self._saving.result()

    def _let_save_end(self) -> None:
        """Wait until what is about to change is written; `wait_saved` raises an error of it."""
        if self._saving is not None:
            wait([self._saving])

    @ray.method(concurrency_group="save")
    def finish_save(self, directory: str) -> None:
        """Mark the files of all ranks as those of this backend, and flush them to disk."""
        path = self._path(directory)
        sign(path, self._backend)
        apply_umask(path)
        sync_tree(path)

    def load(self, directory: str) -> None:
        """Load a checkpoint; raises UserError for one of another backend."""
        self._let_save_end()
        path = self._path(directory)
        require_own(path, self._backend)
        with self._meter.loading():
            self._running.load(path)
        self._refusal = None

    @ray.method(concurrency_group="watch")
    def lasts(self) -> None:
        """Never return: the failure of this call shows that the rank is gone."""
        threading.Event().wait()

    @ray.method(concurrency_group="meter")
    def num_computed(self) -> float:
        """See `WorkMeter`; answered while the rank computes."""
        return self._meter.num_computed

    @ray.method(concurrency_group="meter")
    def loaded_share(self) -> float:
        """See `WorkMeter`; answered while the rank loads a checkpoint."""
        return self._meter.loaded_share

    def discard(self) -> None:
        self._refusal = None
        self._running.discard()

    def sleep(self) -> None:
        self._running.sleep()

    def wake(self) -> None:
        self._running.wake()

    def _require_accepted(self) -> None:
        if self._refusal is not None:
            raise LogProbMismatch(self._refusal.mean)

    def _require(self, policy_version: int) -> None:
        if self._running.policy_version != policy_version:
            raise WeightsUnavailable(f"the trainer has gone on from version {policy_version} of the weights")

    @property
    def _running(self) -> Trainer:
        assert self._trainer is not None, "start comes first"
        return self._trainer

    @property
    def _options(self) -> TrainerOptions:
        assert self._spec is not None, "start comes first"
        return self._spec.options

    @property
    def _backend(self) -> TrainerBackend:
        assert self._spec is not None, "start comes first"
        return self._spec.backend

    def _path(self, relative: str) -> Path:
        assert self._storage is not None, "start comes first"
        return self._storage.resolve(relative)


def _free_gpu_memory() -> None:
    """Free GPU memory that gathered weights took.

    A trainer without torch has gathered nothing.
    """
    if "torch" in sys.modules:
        from longshore_runtime.backends.shared_buffer import free_gpu_memory

        free_gpu_memory()


_GROUPS: Final = {"watch": 1, "meter": 1, "save": 1}
"""Number of threads by concurrency group.

`lasts` has a thread, so has who waits for files, questions for the meter share one, and all other calls run in another,
in their order.
"""
RemoteTrainer: Any = ray.remote(num_cpus=0, max_restarts=0, concurrency_groups=_GROUPS)(TrainerActor)
