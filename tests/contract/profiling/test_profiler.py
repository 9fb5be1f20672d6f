"""Engines and trainers of a job are measured through its own handles; here they have no model, but Ray is real."""

import contextlib
import dataclasses
import queue
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from longshore.api.pods import Workers
from longshore.api.rollout import EngineBackend, EngineSettings
from longshore.api.runtime_status import RuntimeActivity
from longshore.api.training import TrainerBackend
from longshore.sim.lengths import LognormalLengths
from longshore_runtime.backends.engine_spec import EngineSpec
from longshore_runtime.backends.trainer_spec import TrainerSpec
from longshore_runtime.clock import SystemClock
from longshore_runtime.errors import Interrupted, TrainerLost
from longshore_runtime.places import trainer_places
from longshore_runtime.profiling.profiler import Machine, Profiler, Scope
from longshore_runtime.profiling.trainer_probe import TrainerLimits
from longshore_runtime.rewards.events import CheckDue
from longshore_runtime.rollout.engine_pool import EnginePool
from longshore_runtime.rollout.events import Event, ReplicaLost, StopRequested
from longshore_runtime.trainer.group import TrainerGroup
from tests.contract.trainers.replicas import OPTIONS

STEP_S = 0.002
WORKERS = Workers(replicas=1, gpus_per_pod=2, gpu_resource_name="longshore.dev/pretend-gpu")
SCOPE = Scope(
    max_num_seqs=8,
    max_context_tokens=256,
    vocab_size=100,
    trainer=TrainerLimits(1, 1024, LognormalLengths.from_quantiles(20, 40, 200)),
    other_tp_sizes=(2,),
)


@contextlib.contextmanager
def running() -> Iterator[Machine]:
    """Two engines, and two trainer replicas."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    options = EngineSettings(
        backend=EngineBackend.FAKE, max_num_seqs=8, extra_args={"step_s": STEP_S, "num_kv_blocks": 256}
    )
    engines = EnginePool(WORKERS, EngineSpec(options, max_context_tokens=256), "model", "output", events)
    trainers = TrainerGroup(trainer_places(WORKERS, None), TrainerSpec(TrainerBackend.FAKE, OPTIONS), "model", "output")
    engines.wait_for_all()
    try:
        yield Machine(engines, trainers, events, SystemClock())
    finally:
        trainers.stop()
        engines.stop()


@pytest.fixture(scope="module")
def machine(storage: Path) -> Iterator[Machine]:
    """As in a job that runs nothing."""
    with running() as found:
        yield found


def test_everything_is_measured_at_every_size_and_says_how_often(machine: Machine) -> None:
    stages: list[RuntimeActivity] = []
    measured: list[tuple[int, int, str]] = []
    profiler = Profiler(machine, SCOPE, stages.append, lambda *progress: measured.append(progress))
    profiler.run(budget_s=6.0)
    profile = profiler.profile()
    assert stages == ["ProfileEngines", "ProfileTrainers", "ProfileSizes"]
    assert [what for done, _, what in measured if done == 0] == ["engines of size 1", "trainers", "engines of size 2"]
    assert all(done < most for done, most, _ in measured)
    assert profile.tp_sizes == (1, 2)
    assert {point.num_running for point in profile.decode if point.tp_size == 1} == {7, 4, 2, 1}
    for point in profile.decode:
        assert point.step_s >= STEP_S
        assert point.measurements
    assert profile.kv_capacity_tokens == {1: 4096, 2: 4096}
    assert profile.publish_s is not None
    assert profile.publish_s > 0
    assert profile.regroup_s is not None
    assert profile.regroup_s > 0
    assert profile.migration_s is not None
    assert profile.migration_s > 0
    assert profile.measurements["migrationSeconds"] >= 1, "engines of both GPUs have no other to migrate to"
    assert profile.measurements["regroupSeconds"] == 1
    assert profile.measurements["publishSeconds"] >= 2
    assert machine.engines.tp_size == 1, "the engines are again as they were"


def test_events_of_others_are_still_there_afterwards(machine: Machine) -> None:
    machine.events.put(CheckDue())
    Profiler(machine, SCOPE).measure()
    assert machine.events.get_nowait() == CheckDue()


def test_trainers_with_gpus_of_their_own_switch_nothing(machine: Machine) -> None:
    scope = dataclasses.replace(SCOPE, trainer=dataclasses.replace(SCOPE.trainer, takes_turns=False))
    profiler = Profiler(machine, scope)
    profiler.measure()
    profile = profiler.profile()
    assert profile.publish_s is not None
    assert (profile.to_training_s, profile.to_rollout_s) == (None, None)


@pytest.mark.parametrize(
    ("event", "error"), [(StopRequested(), Interrupted), (ReplicaLost("rank 1 is gone"), TrainerLost)]
)
def test_a_request_to_stop_and_a_lost_trainer_end_it(storage: Path, event: Event, error: type[Exception]) -> None:
    with running() as machine:
        machine.events.put(event)
        with pytest.raises(error):
            Profiler(machine, SCOPE).measure()


def test_an_engine_that_is_lost_is_left_out_and_comes_back(storage: Path) -> None:
    """Lost just before it is measured: what comes between would leave it the time to come back."""
    to_kill: list[object] = []

    def kill(done: int, most: int, what: str) -> None:
        if what == "engines of size 1" and to_kill:
            ray.kill(to_kill.pop())

    with running() as machine:
        profiler = Profiler(machine, dataclasses.replace(SCOPE, other_tp_sizes=()), on_measured=kill)
        profiler.run(budget_s=0.0)
        to_kill.append(machine.engines._fleet[0]._actor)
        profiler.run(budget_s=0.0)
        assert not to_kill
        counts = {point.measurements for point in profiler.profile().decode}
        assert min(filter(None, counts)) == 3, "two engines, and then the other one alone"
        while len(machine.engines.serving()) < 2:
            with contextlib.suppress(queue.Empty):
                machine.events.get(timeout=0.1)
