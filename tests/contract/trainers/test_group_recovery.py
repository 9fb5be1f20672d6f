"""A trainer rank is lost: nobody waits for it forever, and a new world does the step again."""

import os
import queue
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray

from longshore.api.runtime_status import JobSize
from longshore.api.status import Assignment
from longshore.api.training import TrainerBackend
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.tiny_model import build_tiny_model
from longshore_runtime.backends.trainer_spec import TrainerSpec
from longshore_runtime.elastic.size import require_no_fewer
from longshore_runtime.errors import Interrupted, SizeChanged, TrainerLost
from longshore_runtime.places import Place
from longshore_runtime.rollout.events import Event, ReplicaLost
from longshore_runtime.stop import Stop
from longshore_runtime.trainer.group import Checks, PendingUpdate, TrainerGroup
from tests.contract.trainers.replicas import OPTIONS, Kind, assert_same_weights, make_samples, step, with_masks
from tests.contract.trainers.test_group import published
from tests.ray_pods import TRAINERS, Pods, worker_pods
from tests.unit.runtime.elastic_parts import Known

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

BATCHES = [with_masks(make_samples(seed=seed)) for seed in range(2)]
MANY = 20
"""So often the second replica is given the second batch: it computes for seconds."""
LIMIT_S = 180.0


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job's storage with a tiny model in it."""
    root = tmp_path_factory.mktemp("storage")
    build_tiny_model(root / "model", seed=0)
    return root


@pytest.fixture(scope="module")
def pods(storage: Path) -> Iterator[Pods]:
    """Ray with worker 0."""
    with worker_pods(storage, count=1, imports=TRAINERS) as pods:
        yield pods


@pytest.mark.parametrize(
    ("backend", "moment"),
    [
        (TrainerBackend.TORCH, "accumulate"),
        (TrainerBackend.TORCH, "update"),
        pytest.param(TrainerBackend.MEGATRON, "update", marks=pytest.mark.soak),
    ],
)
def test_a_step_is_repeated_by_a_new_world_after_a_rank_was_killed(
    backend: TrainerBackend, moment: str, pods: Pods, storage: Path
) -> None:
    sizes = ParallelSizes(tensor=2 if backend is TrainerBackend.MEGATRON else 1)
    last = 2 * sizes.ranks_per_replica - 1
    trainers = TrainerGroup([Place(0, ())] * (last + 1), TrainerSpec(backend, OPTIONS, sizes), "model", "output")
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    trainers.watch(events)
    kind = Kind(backend.lower(), storage / "model")
    alone = kind.start()
    before = dict(alone.weights())
    trainers.train(BATCHES[0])
    step(alone, [BATCHES[0]])
    directory = f"before-{backend}-{moment}"
    (storage / directory).mkdir()
    trainers.begin_save(directory)()

    def give_everything() -> PendingUpdate:
        update = trainers.begin()
        trainers.give(update, 0, BATCHES[1])
        for _ in range(MANY):
            trainers.give(update, 1, BATCHES[1])
        return update

    update = give_everything()
    first_of_second = update.passes[sizes.ranks_per_replica][1]
    if moment == "update":
        trainers.end(update)
        ray.get([answer for rank, answer in update.passes if sizes.replica(rank) == 0], timeout=LIMIT_S)
    ray.get(first_of_second, timeout=LIMIT_S)  # It computes.
    num_given = len(BATCHES[0]) + (MANY + 1) * len(BATCHES[1])
    assert len(BATCHES[0]) < trainers.num_computed() < trainers.num_given == num_given, "it is read meanwhile"
    ray.kill(trainers._world.actors[last])
    if moment == "accumulate":
        trainers.end(update)
    with pytest.raises(TrainerLost):
        trainers.finish(update, timeout_s=LIMIT_S)
    assert generation_of(events) == 0
    if backend is TrainerBackend.TORCH:  # What waits for ranks that gave up themselves is ended by the restart.
        ray.get(trainers._world.actors[0].discard.remote(), timeout=LIMIT_S)

    trainers.restart()
    assert trainers.generation == 1
    assert trainers.num_computed() == trainers.num_given == 0
    trainers.load(directory)
    update = give_everything()
    trainers.end(update)
    result = trainers.finish(update, timeout_s=LIMIT_S)
    expected = step(alone, [BATCHES[1]] * (MANY + 1))
    assert result.update.policy_version == 2
    assert_same_weights(kind, before, expected.weights, published(trainers, 2))

    ray.kill(trainers._world.actors[0])
    while generation_of(events) == 0:  # The old world's other ranks were ended by the restart.
        pass
    with pytest.raises(TrainerLost):
        trainers.weights(2)
    trainers.stop()


def test_pod_of_a_killed_rank_says_which_signal_and_how_much_memory(pods: Pods, storage: Path) -> None:
    spec = TrainerSpec(TrainerBackend.TORCH, OPTIONS, pod_memory_bytes=200 << 20)
    trainers = TrainerGroup([Place(0, ())] * 2, spec, "model", "output")
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    trainers.watch(events)
    pid = ray.get(trainers._world.actors[1].__ray_call__.remote(lambda actor: os.getpid()), timeout=LIMIT_S)
    os.kill(pid, signal.SIGKILL)
    assert generation_of(events) == 0
    found = trainers.find_death()
    assert found is not None
    assert (found.replica, found.death.pid, found.death.exit_code) == (1, pid, -signal.SIGKILL)
    assert found.death.peak_bytes > 100 << 20, "torch alone takes that much"
    assert str(found).startswith("trainer replica 1 (worker 0) was killed by signal 9 (SIGKILL) after using 0.")
    assert found.is_own_fault, "it had most of the memory of its pod"
    trainers.restart()
    assert trainers.find_death() is None, "the new ranks live"
    trainers.stop()


def generation_of(events: "queue.SimpleQueue[Event]") -> int:
    """Generation of the next lost rank."""
    event = events.get(timeout=LIMIT_S)
    assert isinstance(event, ReplicaLost)
    return event.generation


def test_a_stopping_pod_waits_for_no_checkpoint_load_and_not_forever_for_an_update(pods: Pods, storage: Path) -> None:
    stop = Stop(grace_s=0.0)
    spec, checks = TrainerSpec(TrainerBackend.FAKE, OPTIONS), Checks(stop.require_none, stop.require_time_to_update)
    trainers = TrainerGroup([Place(0, ())], spec, "m", "output", checks=checks)
    (storage / "loaded").mkdir()
    trainers.begin_save("loaded")()
    trainers.load("loaded")
    trainers.train(BATCHES[0])
    update = trainers.begin()
    trainers.add(update, BATCHES[1])
    trainers.end(update)
    stop.ask()
    for wait in (
        lambda: trainers.finish(update),
        lambda: trainers.log_probs(BATCHES[0]),
        lambda: trainers.load("loaded"),
    ):
        with pytest.raises(Interrupted, match="asked to stop"):
            wait()
    with pytest.raises(TrainerLost, match="does not answer after 0 s"):
        trainers.begin_save("loaded", timeout_s=stop.save_limit_s)()
    trainers.stop()


def test_a_world_starts_again_once_its_pods_are_back(pods: Pods, storage: Path) -> None:
    """Without its pod it gives up in time, or when the job shall do without; with the pod it trains on as before."""
    pods.join(1)
    asked, places = Known(), [Place(0, ()), Place(1, ())]
    spec, check = TrainerSpec(TrainerBackend.FAKE, OPTIONS), lambda: require_no_fewer(asked, len(places))
    trainers = TrainerGroup(places, spec, "m", "output", checks=Checks(pods=check))
    assert [trainers.replicas_on({worker}) for worker in range(2)] == [(0,), (1,)]
    (storage / "saved").mkdir()
    trainers.begin_save("saved")()
    trainers.train(BATCHES[0])
    expected = published(trainers, 1)

    pods.leave(1)
    with pytest.raises(TrainerLost):
        trainers.train(BATCHES[0])
    with pytest.raises(TrainerLost, match="a pod of the trainers is not there after 2 s"):
        trainers.restart(timeout_s=2)
    asked.assignment = Assignment(epoch=1, size=JobSize(epoch=1, workers=1, held=2))
    with pytest.raises(SizeChanged):
        trainers.restart(timeout_s=LIMIT_S)
    asked.assignment = Assignment()
    pods.join(1)
    trainers.restart(timeout_s=LIMIT_S)
    assert trainers.generation == 3
    trainers.load("saved")
    trainers.train(BATCHES[0])
    again = published(trainers, 1)
    assert all(np.array_equal(expected[name], again[name]) for name in expected)
    trainers.stop()
