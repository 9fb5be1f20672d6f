"""Weights that engines read from the memory of trainers in their pods: both are real, and Ray actors as in a job."""

import queue
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

from longshore.api.pods import Workers
from longshore.api.rollout import EngineBackend, EngineSettings
from longshore.api.training import TrainerBackend
from longshore.rounds.messages import EngineJoined, EngineLost
from longshore_runtime.backends.engine_protocol import Engine
from longshore_runtime.backends.engine_spec import EngineSpec
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.tiny_model import build_tiny_model
from longshore_runtime.backends.trainer_spec import TrainerSpec
from longshore_runtime.errors import WeightsUnavailable
from longshore_runtime.places import Place, trainer_places
from longshore_runtime.rollout.engine_pool import EnginePool
from longshore_runtime.rollout.engine_replies import Reply
from longshore_runtime.rollout.events import Event
from longshore_runtime.rollout.published import Delivered
from longshore_runtime.rollout.remote_engine import EngineHandle
from longshore_runtime.trainer.direct_weights import Delivery
from longshore_runtime.trainer.group import TrainerGroup
from longshore_runtime.trainer.sending import Sending
from longshore_runtime.weights.buckets import MAX_BUCKET_BYTES
from longshore_runtime.weights.shared import BroadcastGroup, BucketPart
from tests.contract.engines.harness import MAX_CONTEXT_TOKENS, PROMPT, SMALL_BUCKET_BYTES, request
from tests.contract.engines.pods import Job
from tests.contract.engines.reference import reference_log_probs
from tests.contract.trainers.replicas import OPTIONS, make_samples
from tests.contract.trainers.test_group import fetched
from tests.ray_pods import ENGINES_AND_TRAINERS, worker_pods

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

PODS = Workers(replicas=2, gpus_per_pod=2, gpu_resource_name="longshore.dev/gpu")
ONE_POD = PODS.model_copy(update={"replicas": 1})
DIRECT = Delivery(is_direct=True)
LAYOUTS = [
    pytest.param(TrainerBackend.TORCH, ParallelSizes(), id="Torch", marks=pytest.mark.soak),
    pytest.param(TrainerBackend.TORCH, ParallelSizes(fsdp=2), id="Torch-FSDP2"),
    pytest.param(TrainerBackend.MEGATRON, ParallelSizes(tensor=2), id="Megatron-TP2"),
    pytest.param(TrainerBackend.MEGATRON, ParallelSizes(pipeline=2), id="Megatron-PP2", marks=pytest.mark.soak),
]


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """With a tiny model in it, whose embeddings are tied, in two pods."""
    root = tmp_path_factory.mktemp("storage")
    build_tiny_model(root / "model", seed=0, tied=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_F32_DEFAULT", "ieee")  # On a GPU, attention of fp32 engines would multiply in TF32.
        with worker_pods(root, count=2, imports=ENGINES_AND_TRAINERS):
            yield root


def start_engines(workers: Workers, backend: EngineBackend, tp_size: int = 1) -> Job:
    """All engines of a job."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    options = EngineSettings(backend=backend, enforce_eager=True, tensor_parallel_size=tp_size)
    pool = EnginePool(workers, EngineSpec(options, MAX_CONTEXT_TOKENS), "model", "output", events)
    pool.wait_for_all()
    return Job(pool, events)


def start_trainers(places: list[Place], backend: TrainerBackend, sizes: ParallelSizes) -> TrainerGroup:
    """All ranks of a job."""
    spec = TrainerSpec(backend, replace(OPTIONS, kl_coefficient=0.0), sizes)
    return TrainerGroup(places, spec, "model", "output", DIRECT)


@pytest.fixture(scope="module")
def vllm(storage: Path) -> Iterator[Job]:
    """One engine of two workers."""
    job = start_engines(ONE_POD, EngineBackend.VLLM, tp_size=2)
    yield job
    job.pool.stop()


@pytest.mark.parametrize(("backend", "sizes"), LAYOUTS)
def test_engines_sample_from_the_weights_that_the_trainers_beside_them_hold(
    storage: Path, vllm: Job, monkeypatch: pytest.MonkeyPatch, backend: TrainerBackend, sizes: ParallelSizes
) -> None:
    places = trainer_places(ONE_POD, None, sizes.ranks_per_replica)
    check(storage, vllm, start_trainers(places, backend, sizes), monkeypatch)


def test_ranks_that_are_cut_as_the_workers_are_write_what_they_hold(storage: Path) -> None:
    sizes = ParallelSizes(tensor=2)
    trainers = start_trainers(trainer_places(ONE_POD, None, 2), TrainerBackend.MEGATRON, sizes)
    try:
        assert trainers.is_cut_alike((0, 1))
        assert not trainers.is_cut_alike((0,))
        assert not trainers.is_cut_alike((1, 0))
        num_bytes = {}
        for in_pieces in (False, True):
            sending = trainers.begin_sending({0, 1}, 0, in_pieces=in_pieces)
            parts = iter(sending.next, None)
            slots = [slot for written in parts for slot in written[0].slots]
            sending.end()
            assert any(slot.cut is not None for slot in slots) == in_pieces
            num_bytes[in_pieces] = sum(slot.num_bytes for slot in slots if "layers" in slot.name)
        assert num_bytes[True] < 0.6 * num_bytes[False]
        sending = trainers.begin_sending(set(), 0)
        parts = iter(sending.next, None)
        assert all(part.buffer is None for written in parts for part in written.values()), "nobody reads it"
        sending.end()
    finally:
        trainers.stop()


@pytest.mark.parametrize(("backend", "sizes"), LAYOUTS[1:3])
def test_engines_far_from_the_trainers_sample_from_weights_that_are_broadcast(
    storage: Path, vllm: Job, monkeypatch: pytest.MonkeyPatch, backend: TrainerBackend, sizes: ParallelSizes
) -> None:
    check(storage, vllm, start_trainers([Place(1, ())] * 2, backend, sizes), monkeypatch)


@pytest.mark.parametrize(
    "places", [trainer_places(ONE_POD, None), [Place(1, ())] * 2], ids=["shared memory", "broadcast"]
)
def test_engines_that_regroup_sample_from_the_newest_weights(storage: Path, vllm: Job, places: list[Place]) -> None:
    trainers = start_trainers(places, TrainerBackend.TORCH, ParallelSizes())
    try:
        for version, tp_size in ((1, 1), (2, 2)):
            trainers.wake()
            trainers.train(make_samples(seed=version))
            trainers.sleep()
            vllm.pool.publish(trainers.weights(version))
            vllm.pool.regroup(tp_size)
            weights = fetched(trainers.begin_copies(version)())
            engines = vllm.pool.serving()
            assert len(engines) == 2 // tp_size
            for engine in engines:
                sampled = vllm.finish(engine, request())
                assert [run.policy_version for run in sampled.trajectory.runs] == [version]
                expected = reference_log_probs(storage / "model", weights, PROMPT, sampled, 1.0)
                np.testing.assert_allclose(sampled.trajectory.log_probs.tolist(), expected, atol=1e-4)
    finally:
        trainers.stop()


def check(storage: Path, job: Job, trainers: TrainerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a step, the weights of the trainers are those of the engine, though few matrices fit into a bucket."""
    in_buckets = partial(trainers.begin_sending, max_bucket_bytes=2 * SMALL_BUCKET_BYTES)
    monkeypatch.setattr(trainers, "begin_sending", in_buckets)
    try:
        trainers.train(make_samples())
        trainers.sleep()
        job.pool.publish(trainers.weights(1))
        weights = fetched(trainers.begin_copies(1)())
        (engine,) = job.pool.serving()
        sampled = job.finish(engine, request())
        assert [run.policy_version for run in sampled.trajectory.runs] == [1]
        expected = reference_log_probs(storage / "model", weights, PROMPT, sampled, 1.0)
        np.testing.assert_allclose(sampled.trajectory.log_probs.tolist(), expected, atol=1e-4)
    finally:
        trainers.stop()


def test_no_engine_serves_before_the_trainers_gave_their_memory_back(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers = start_trainers(trainer_places(ONE_POD, None), TrainerBackend.FAKE, ParallelSizes())
    job = start_engines(ONE_POD, EngineBackend.FAKE)
    written, command = Sending.next, EngineHandle.command
    files: list[Path] = []
    served: list[int] = []

    def watched(sending: Sending) -> Mapping[int, BucketPart] | None:
        parts = written(sending)
        files.extend(Path(part.buffer.file) for part in (parts or {}).values() if part.buffer is not None)
        assert all(file.exists() for file in files)
        return parts

    def asked(engine: EngineHandle, method: Any, *args: Any) -> Reply[Any]:
        if method is Engine.serve:
            assert files
            assert not any(file.exists() for file in files)
            served.append(engine.engine)
        return command(engine, method, *args)

    monkeypatch.setattr(Sending, "next", watched)
    monkeypatch.setattr(EngineHandle, "command", asked)
    try:
        job.pool.publish(trainers.weights(0))
        assert served == job.pool.serving() == [0, 1]
    finally:
        job.pool.stop()
        trainers.stop()


def test_an_engine_that_joins_later_gets_copies_until_the_trainer_goes_on(storage: Path) -> None:
    trainers = start_trainers(trainer_places(PODS, None), TrainerBackend.FAKE, ParallelSizes())
    job = start_engines(PODS, EngineBackend.FAKE)
    try:
        job.pool.publish(trainers.weights(0))
        assert job.pool.serving() == [0, 1, 2, 3]
        sampled = job.finish(0, request())
        job.lose(1)
        assert isinstance(job.next_event(), EngineLost)
        job.pool.replace(1)
        assert job.next_event() == EngineJoined(1)
        assert job.finish(1, request()).trajectory.tokens.tolist() == sampled.trajectory.tokens.tolist(), (
            "the weights are the same"
        )

        gone = trainers.weights(0)
        trainers.train(make_samples())
        with pytest.raises(WeightsUnavailable, match="gone on from version 0"):
            gone.stored()
        outcomes = gone.deliver(list(job.pool._fleet), Delivered(4))
        assert all(isinstance(failure, WeightsUnavailable) for _, failure in outcomes)
        job.pool.publish(trainers.weights(1))
        assert job.pool.serving() == [0, 1, 2, 3]
        assert job.finish(1, request()).trajectory.tokens.tolist() != sampled.trajectory.tokens.tolist()
    finally:
        job.pool.stop()
        trainers.stop()


def test_copies_that_are_made_at_once_outlive_what_the_trainer_does_next(storage: Path) -> None:
    spec = TrainerSpec(TrainerBackend.FAKE, OPTIONS)
    trainers = TrainerGroup([Place(1, ())], spec, "model", "output", replace(DIRECT, keeps_copies=True))
    job = start_engines(ONE_POD, EngineBackend.FAKE)
    try:
        job.pool.publish(trainers.weights(0))
        trainers.train(make_samples())
        sampled = job.finish(0, request())
        for _ in range(2):
            job.lose(1)
            assert isinstance(job.next_event(), EngineLost)
            job.pool.replace(1)
            assert job.next_event() == EngineJoined(1)
            assert job.finish(1, request()).trajectory == sampled.trajectory
    finally:
        job.pool.stop()
        trainers.stop()


def test_some_engines_read_what_the_others_are_sent(storage: Path) -> None:
    trainers = start_trainers([Place(0, ())], TrainerBackend.FAKE, ParallelSizes())
    job = start_engines(PODS, EngineBackend.FAKE)
    try:
        assert [bool(trainers.colocated_ranks(engine)) for engine in job.pool._fleet] == [True, True, False, False]
        for version in range(2):
            job.pool.publish(trainers.weights(version))
            assert job.pool.serving() == [0, 1, 2, 3]
            assert (
                len({job.finish(engine, request()).trajectory.tokens.tobytes() for engine in job.pool.serving()}) == 1
            )
            trainers.train(make_samples())
    finally:
        job.pool.stop()
        trainers.stop()


def test_a_broadcast_that_an_engine_misses_fails_for_all_remote_ones_and_they_return(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers = start_trainers([Place(0, ())], TrainerBackend.FAKE, ParallelSizes())
    job = start_engines(PODS, EngineBackend.FAKE)
    meeting = Sending.channel

    def without_the_last(sending: Sending, num_workers: int) -> BroadcastGroup:
        ray.kill(job.pool._fleet[3]._actor)
        return replace(meeting(sending, num_workers), limit_s=5.0)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(Sending, "channel", without_the_last)
            job.pool.publish(trainers.weights(0))
        assert job.pool.serving() == [0, 1]
        lost = {event.engine: event for event in (job.next_event(), job.next_event()) if isinstance(event, EngineLost)}
        assert lost.keys() == {2, 3}
        # The trainer gives up, or the engine does: by its own limit, or because the trainer has left the meeting.
        said = "the broadcast of the weights broke off: .+|(wait|Connect) timeout|Connection (was likely )?closed"
        assert re.search(said, lost[2].reason)
        assert "process or pod is gone" in lost[3].reason
        for engine in lost:
            job.pool.replace(engine)
        assert {job.next_event(), job.next_event()} == {EngineJoined(2), EngineJoined(3)}
        assert len({job.finish(engine, request()).trajectory.tokens.tobytes() for engine in job.pool.serving()}) == 1
        assert trainers.policy_version() == 0, "the trainer lives on"
    finally:
        job.pool.stop()
        trainers.stop()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("backend", [TrainerBackend.TORCH, TrainerBackend.MEGATRON])
def test_weights_cross_a_gpu_by_cuda_ipc(storage: Path, backend: TrainerBackend) -> None:
    workers = Workers(replicas=1, gpus_per_pod=1)
    options = EngineSettings(enforce_eager=True, gpu_memory_utilization=0.3, dtype="float32")
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    spec = EngineSpec(options, MAX_CONTEXT_TOKENS, accelerator=True)
    pool = EnginePool(workers, spec, "model", "output", events)
    pool.wait_for_all()
    trainers = start_trainers(trainer_places(workers, None), backend, ParallelSizes())
    free_bytes = []
    try:
        for version in (1, 2, 3):
            pool.sleep()
            trainers.train(make_samples())
            trainers.sleep()
            pool.wake()
            pool.publish(trainers.weights(version))
            free_bytes.append(torch.cuda.mem_get_info()[0])
            weights = fetched(trainers.begin_copies(version)())
            sampled = Job(pool, events).finish(0, request())
            expected = reference_log_probs(storage / "model", weights, PROMPT, sampled, 1.0)
            np.testing.assert_allclose(sampled.trajectory.log_probs.tolist(), expected, atol=1e-3)
        assert free_bytes[-1] > free_bytes[0] - MAX_BUCKET_BYTES / 4, "the buckets' memory is given back"
    finally:
        pool.stop()
        trainers.stop()
