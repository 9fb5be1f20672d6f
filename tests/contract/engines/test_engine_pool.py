"""All engines of a job, as Ray actors in pods that are Ray nodes: who serves, who sleeps, and who comes back.

The engines have no model. The GPUs are pretended, so that their number is free.
"""

import json
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import psutil
import pytest
import ray

from longshore.api.pods import Workers
from longshore.api.rollout import EngineBackend, EngineSettings
from longshore.api.runtime_status import JobSize
from longshore.api.status import Assignment
from longshore.rounds.messages import EngineJoined, EngineLost
from longshore_runtime.backends.engine_protocol import LiveResponse
from longshore_runtime.backends.engine_spec import EngineSpec, EngineStartError
from longshore_runtime.backends.fake_engine import UNLIMITED_KV_TOKENS
from longshore_runtime.elastic.size import require_no_fewer
from longshore_runtime.errors import EngineDied, Interrupted, SizeChanged, TrainerLost
from longshore_runtime.places import Place
from longshore_runtime.rollout import remote_engine
from longshore_runtime.rollout.engine_pool import EnginePool
from longshore_runtime.rollout.events import Event, WeightsLost
from longshore_runtime.rollout.fleet import Fleet, FleetStart, Joining
from longshore_runtime.rollout.published import Delivered, Outcome, StoredWeights
from longshore_runtime.rollout.remote_engine import EngineHandle
from longshore_runtime.weights.buckets import checksums, combined_checksum
from longshore_runtime.weights.slices import Weights
from tests.contract.engines.harness import PROMPT, request
from tests.contract.engines.pods import LIMIT_S, Job
from tests.ray_pods import Pods, worker_pods
from tests.unit.runtime.elastic_parts import Known

SHORT_S = 2.0
NEVER_ENDS = {"median_tokens": 1e9, "sigma": 0.0, "step_s": 0.001}
ENDLESS = 1 << 30
TWO_BY_TWO = Workers(replicas=2, gpus_per_pod=2, gpu_resource_name="longshore.dev/gpu")
ONE_BY_TWO = Workers(replicas=1, gpus_per_pod=2, gpu_resource_name="longshore.dev/gpu")
TWO_BY_ONE = Workers(replicas=2, gpus_per_pod=1, gpu_resource_name="longshore.dev/gpu")


def weights(policy_version: int, put: Callable[[Weights], Any] = ray.put) -> StoredWeights:
    """Two buckets that nobody published before."""
    parts: list[Weights] = [{name: np.full(3, policy_version, dtype=np.float32)} for name in ("a", "b")]
    return StoredWeights(
        tuple(put(part) for part in parts), combined_checksum([checksums(part) for part in parts]), policy_version
    )


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    """Two worker pods, whose storage holds a model as far as engines without one look at it."""
    storage = tmp_path_factory.mktemp("storage")
    (storage / "model").mkdir()
    (storage / "model" / "config.json").write_text(json.dumps({"vocab_size": 100, "eos_token_id": 2}))
    with worker_pods(storage, count=2) as pods:
        yield pods


Start = Callable[..., Job]


@pytest.fixture
def start(pods: Pods) -> Iterator[Start]:
    """Starts the engines of a job; keywords are options of the engine without a model."""
    started: list[Job] = []

    def start(workers: Workers = TWO_BY_TWO, **extra_args: object) -> Job:
        options = EngineSettings(backend=EngineBackend.FAKE, extra_args=extra_args)
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        notices: list[tuple[str, str]] = []
        spec = EngineSpec(options, ENDLESS)
        pool = EnginePool(workers, spec, "model", "output", events, lambda *notice: notices.append(notice))
        started.append(Job(pool, events, notices))
        pool.wait_for_all()
        return started[-1]

    yield start
    for job in started:
        job.pool.stop()


def test_engines_serve_once_they_have_the_weights_and_report_where_they_are(start: Start) -> None:
    job = start(num_kv_blocks=4)
    assert job.pool.serving() == []
    job.pool.publish(weights(3))
    assert job.pool.serving() == [0, 1, 2, 3]
    for engine in job.pool.serving():
        job.samples(engine, policy_version=3)
    assert [job.pool.pods_of(engine) for engine in job.pool.serving()] == [(0,), (0,), (1,), (1,)]
    assert job.pool.engines_on([1]) == (2, 3)
    assert (job.pool.tp_size, job.pool.num_gpus_of(0)) == (1, 1)
    assert {stats.kv_capacity_tokens for stats in job.pool.stats().values()} == {4 * 16}


def test_an_engine_that_starts_again_is_one_of_its_pod(start: Start) -> None:
    """A pod leaves the rollout as a whole: an engine that comes back meanwhile must get no requests."""
    job = start()
    job.pool.publish(weights(0))
    job.pool._lose(list(job.pool._fleet)[2], "it is gone")
    assert 2 not in job.pool.serving()
    assert job.pool.engines_on([1]) == (2, 3)


def test_what_runs_in_a_pod_has_the_priority_of_any_other_program(pods: Pods) -> None:
    assert ray.get(ray.remote(num_cpus=0)(lambda: os.nice(0)).remote()) == os.nice(0)


def test_it_says_how_many_engines_have_started_and_what_the_others_wait_for(pods: Pods) -> None:
    """A third pod joins later: meanwhile the others start, and the engine without a pod is not asked.

    The wait for it ends when the job is to go on with two pods.
    """
    workers = TWO_BY_TWO.model_copy(update={"replicas": 3, "gpus_per_pod": 1})
    options = EngineSettings(backend=EngineBackend.FAKE)
    pool = EnginePool(workers, EngineSpec(options, ENDLESS), "model", "output", queue.SimpleQueue())
    try:
        while pool.starting().num_started < 2:
            threading.Event().wait(0.05)
        assert pool.starting() == FleetStart(2, 3, {})
        asked = Known(Assignment(epoch=1, size=JobSize(epoch=1, workers=2, held=3)))
        with pytest.raises(SizeChanged):
            pool.wait_for_all(lambda: require_no_fewer(asked, workers.replicas))
        pods.join(2)
        pool.wait_for_all(lambda: require_no_fewer(Known(), workers.replicas))
        assert pool.starting() == FleetStart(3, 3, {})
    finally:
        pool.stop()
        pods.leave(2)


def test_lengths_of_running_responses_are_reported_while_the_engines_step(start: Start) -> None:
    job = start(TWO_BY_ONE, **NEVER_ENDS)
    job.pool.publish(weights(0))
    job.pool.add(0, [request(max_tokens=ENDLESS)])
    first = grown(job, engine=0, than=0)
    again = grown(job, engine=0, than=first.generated_tokens)
    assert (again.prompt_tokens, job.pool.live(LIMIT_S)[1]) == (len(PROMPT), [])
    assert job.pool.stats()[0].kv_capacity_tokens == UNLIMITED_KV_TOKENS


def grown(job: Job, engine: int, than: int) -> LiveResponse:
    """The only response of an engine, once it is there and longer."""
    while True:
        for response in job.pool.live(LIMIT_S)[engine]:
            if response.generated_tokens > than:
                return response


def test_retired_engines_sleep_while_the_others_sample(start: Start) -> None:
    job = start()
    job.pool.publish(weights(0))
    job.pool.release(job.pool.engines_on([0]), LIMIT_S)
    assert job.pool.serving() == [2, 3]
    assert set(job.pool.live(LIMIT_S)) == {2, 3}
    job.samples(3, policy_version=0)
    with pytest.raises(AssertionError, match="an engine that has left the round takes no requests"):
        job.pool.add(0, [request()])
    job.pool.sleep()
    job.pool.wake()
    job.pool.publish(weights(1))
    assert job.pool.serving() == [0, 1, 2, 3]
    job.samples(0, policy_version=1)


def test_engines_retire_while_the_driver_works_with_the_others(start: Start) -> None:
    job = start(TWO_BY_ONE, sleep_s=0.2)
    job.pool.publish(weights(0))
    thread = threading.Thread(target=job.pool.release, args=([0], LIMIT_S))
    thread.start()
    while thread.is_alive():
        job.samples(1, policy_version=0)
    assert job.pool.serving() == [1]


def test_an_engine_that_fails_to_sleep_is_killed_and_returns_with_the_next_weights(start: Start) -> None:
    job = start(TWO_BY_ONE, sleep_s=1e6)
    job.pool.publish(weights(0))
    job.pool.release([1], SHORT_S)
    assert job.pool.serving() == [0]
    job.pool.wake()
    job.pool.publish(weights(1))
    wait_serving(job, [0, 1])
    job.samples(1, policy_version=1)
    assert job.notices == [("EngineDidNotSleep", "engine 1 (worker 1) did not fall asleep within 2 s and was stopped")]


def test_an_engine_that_dies_while_it_falls_asleep_is_not_waited_for(start: Start) -> None:
    job = start(TWO_BY_ONE, sleep_s=1e6)
    job.pool.publish(weights(0))
    thread = threading.Thread(target=job.pool.release, args=([1], 10 * LIMIT_S))
    thread.start()
    job.lose(1)
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    job.assert_noticed_death(1, worker=1)
    job.pool.wake()
    job.pool.publish(weights(1))
    wait_serving(job, [0, 1])


def wait_serving(job: Job, engines: list[int]) -> None:
    """Until these engines serve; each may join any time and is reported with that, and nothing else may happen."""
    while job.pool.serving() != engines:
        assert isinstance(job.next_event(), EngineJoined)
    while not job.events.empty():
        assert isinstance(job.next_event(), EngineJoined)


@pytest.mark.parametrize("all_sleep", [False, True], ids=["retired", "asleep"])
def test_an_engine_that_dies_asleep_is_no_loss_and_returns_with_the_next_weights(start: Start, all_sleep: bool) -> None:
    job = start(TWO_BY_ONE)
    job.pool.publish(weights(0))
    if all_sleep:
        job.pool.sleep()
    else:
        job.pool.release([1], LIMIT_S)
    job.lose(1)
    job.wait_lost(1)
    job.pool.replace(1)
    assert job.pool._fleet[1].ended, "it restarts when its GPU is free"
    job.pool.wake()
    job.pool.publish(weights(1))
    wait_serving(job, [0, 1])
    job.samples(1, policy_version=1)
    job.assert_noticed_death(1, worker=1)


def test_an_engine_that_dies_before_it_retires_comes_back_after_the_round(start: Start) -> None:
    job = start(TWO_BY_ONE)
    job.pool.publish(weights(0))
    job.lose(1)
    assert lost_engine(job.next_event()) == 1
    job.assert_noticed_death(1, worker=1)
    job.pool.release([1], LIMIT_S)
    job.pool.replace(1)
    assert job.pool._fleet[1].ended
    job.pool.wake()
    job.pool.publish(weights(1))
    wait_serving(job, [0, 1])


def test_an_engine_that_starts_when_its_pod_leaves_the_rollout_is_stopped(start: Start) -> None:
    job = start(ONE_BY_TWO)
    job.pool.publish(weights(0))
    job.lose(1)
    job.next_event()
    job.pool.replace(1)
    job.pool.release([0], LIMIT_S)
    assert job.pool.serving() == []
    job.pool.wake()
    job.pool.publish(weights(1))
    wait_serving(job, [0, 1])
    job.samples(1, policy_version=1)
    job.assert_noticed_death(1, worker=0)  # And of nothing else: what is stopped on purpose is not lost.


def test_engines_that_end_with_the_job_are_not_reported_as_lost(start: Start) -> None:
    job = start(TWO_BY_ONE)
    job.pool.publish(weights(0))
    job.pool.stop()
    assert all(handle.ended for handle in job.pool._fleet)
    assert job.notices == []


def test_late_news_of_a_loss_does_not_stop_the_engine_that_came_back(start: Start) -> None:
    job = start(TWO_BY_ONE)
    job.pool.publish(weights(0))
    job.lose(0)
    job.next_event()
    job.pool.replace(0)
    assert job.next_event() == EngineJoined(0)
    job.pool.replace(0)
    job.samples(0, policy_version=0)


def test_engines_regroup_and_the_way_back_is_warm(start: Start) -> None:
    job = start()
    job.pool.publish(weights(0))
    job.pool.regroup(2)
    assert (job.pool.tp_size, job.pool.serving()) == (2, [4, 5])
    assert [job.pool.pods_of(engine) for engine in job.pool.serving()] == [(0,), (1,)]
    assert job.pool.num_gpus_of(4) == 2
    job.samples(5, policy_version=0)
    job.pool.publish(weights(1))
    job.pool.regroup(1)
    assert (job.pool.tp_size, job.pool.serving()) == (1, [0, 1, 2, 3])
    for engine in job.pool.serving():
        job.samples(engine, policy_version=1)


def test_engines_regroup_across_pods_and_are_lost_with_either_of_them(start: Start) -> None:
    job = start()
    job.pool.publish(weights(0))
    job.pool.regroup(4)
    (engine,) = job.pool.serving()
    assert (job.pool.pods_of(engine), job.pool.num_gpus_of(engine)) == ((0, 1), 4)
    assert job.pool.engines_on([0]) == job.pool.engines_on([1]) == (engine,)
    job.samples(engine, policy_version=0)
    for place in (1, 0):
        parts = job.pool._fleet[engine]._actors
        ray.kill(parts[place])
        assert lost_engine(job.next_event()) == engine
        with pytest.raises(ray.exceptions.RayActorError):  # The other part frees its GPUs before anyone asks for it.
            ray.get(parts[1 - place].__ray_ready__.remote(), timeout=LIMIT_S)
        job.pool.replace(engine)
        assert job.next_event() == EngineJoined(engine)
        job.samples(engine, policy_version=0)
    job.wait_noticed(2)
    dead = sorted(message.partition(" exited")[0] for _, message in job.notices)
    assert dead == [f"engine {engine} (worker {place})" for place in (0, 1)]
    job.pool.regroup(1)
    assert [job.pool.pods_of(one) for one in job.pool.serving()] == [(0,), (0,), (1,), (1,)]


def test_parts_of_an_engine_wait_for_each_other_and_a_lost_one_is_no_mistake(pods: Pods) -> None:
    """The first part ends with an error of its own, since it hears of the loss before Ray does."""
    options = EngineSettings(backend=EngineBackend.FAKE, tensor_parallel_size=2, extra_args={"max_tp_size": 1})
    places = (Place(0, ()), Place(2, ()))
    handle = EngineHandle(0, places, EngineSpec(options, ENDLESS), "model", "output", lambda event: None)
    try:
        ray.get(handle._actor.loaded.remote(), timeout=LIMIT_S)
        assert handle.is_starting and not handle.is_placed
        pods.join(2)
        ray.wait([handle._start], timeout=LIMIT_S)
        ray.kill(handle._followers[0])
        with pytest.raises(EngineDied, match=r"process or pod is gone \(ActorDiedError\) in worker 2"):
            handle.wait_started()
    finally:
        handle.stop()
        pods.leave(2)


def test_options_that_every_part_of_an_engine_refuses_are_a_mistake(pods: Pods) -> None:
    options = EngineSettings(backend=EngineBackend.FAKE, tensor_parallel_size=2, extra_args={"no_such": 1})
    places = (Place(0, ()), Place(1, ()))
    handle = EngineHandle(0, places, EngineSpec(options, ENDLESS), "model", "output", lambda event: None)
    try:
        with pytest.raises(EngineStartError, match="no_such"):
            handle.wait_started()
    finally:
        handle.stop()


def test_engines_regroup_while_all_of_them_sleep(start: Start) -> None:
    job = start(ONE_BY_TWO)
    job.pool.publish(weights(0))
    job.pool.sleep()
    job.pool.regroup(2)
    assert job.pool.serving() == []
    job.pool.publish(weights(1))
    assert job.pool.serving() == [2]
    job.samples(2, policy_version=1)


def test_only_one_fleet_is_parked(start: Start, pods: Pods) -> None:
    job = start(Workers(replicas=1, gpus_per_pod=4, gpu_resource_name="longshore.dev/gpu"))
    job.pool.publish(weights(0))
    first = list(job.pool._fleet)
    job.pool.regroup(2)
    job.pool.regroup(4)
    assert all(handle.ended for handle in first)
    job.pool.regroup(2)
    assert job.pool.serving() == [4, 5], "they were parked"
    job.pool.regroup(1)
    assert job.pool.serving() == [7, 8, 9, 10]
    job.samples(10, policy_version=0)


def test_an_engine_that_dies_while_parked_is_dropped_and_another_takes_its_place(start: Start) -> None:
    job = start(ONE_BY_TWO)
    job.pool.publish(weights(0))
    parked = job.pool._fleet
    job.pool.regroup(2)
    ray.kill(parked[1]._actor)
    job.assert_noticed_death(1, worker=0)
    assert parked[1].ended
    job.pool.regroup(1)
    assert job.pool.serving() == [0, 3]
    job.samples(3, policy_version=0)


@pytest.mark.parametrize("max_tp_size", [1, 16])
def test_engines_serve_on_when_the_new_size_is_impossible(start: Start, max_tp_size: int) -> None:
    job = start(ONE_BY_TWO, max_tp_size=max_tp_size)
    job.pool.publish(weights(0))
    with pytest.raises(EngineStartError, match="engines of 3 GPUs do not fill pods of 2"):
        job.pool.regroup(3)
    if max_tp_size == 1:
        with pytest.raises(EngineStartError, match="the model does not split into 2 parts"):
            job.pool.regroup(2)
    else:
        with pytest.raises(EngineStartError, match="no engine of 2 GPUs starts: its pod is not there"):
            job.pool.regroup(2, timeout_s=0)
    assert (job.pool.tp_size, job.pool.serving()) == (1, [0, 1])
    for engine in job.pool.serving():
        job.samples(engine, policy_version=0)


def test_an_engine_that_fails_to_sleep_does_not_keep_the_others_from_regrouping(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longshore_runtime.rollout.engine_pool._SLEEP_LIMIT_S", SHORT_S)
    job = start(ONE_BY_TWO, sleep_s=1e6)
    job.pool.publish(weights(0))
    job.pool.regroup(2)
    assert job.pool.serving() == [2]
    job.samples(2, policy_version=0)
    assert [reason for reason, _ in job.notices] == ["EngineDidNotSleep"] * 2


def test_a_pod_gone_before_engines_regroup_is_a_loss_and_its_engine_joins_later(
    start: Start, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longshore_runtime.rollout.fleet._PLACE_LIMIT_S", 15.0)
    job = start()
    job.pool.publish(weights(0))
    pods.leave(1)
    try:
        assert {lost_engine(job.next_event()) for _ in range(2)} == {2, 3}
        job.pool.regroup(2)
        assert job.pool.serving() == [4]
        assert lost_engine(job.next_event()) == 5
        job.wait_noticed(3)
        job.pool.replace(5)
        job.samples(4, policy_version=0)
    finally:
        pods.join(1)
    assert job.next_event() == EngineJoined(5)
    job.samples(5, policy_version=0)
    assert {reason for reason, _ in job.notices} == {"EngineLost"}
    first, second, third = sorted(message for _, message in job.notices)  # One each, though the driver hears later.
    assert first.startswith("engine 2 (worker 1) ") and second.startswith("engine 3 (worker 1) ")
    assert third == "engine 5 (worker 1) was lost: its pod is not there"


@pytest.mark.parametrize("moment", ["while the new engines start", "while they load the weights"])
def test_when_the_only_pod_dies_in_a_regroup_the_engines_that_were_come_back_with_it(
    moment: str, start: Start, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longshore_runtime.rollout.fleet._PLACE_LIMIT_S", SHORT_S)
    job = start(ONE_BY_TWO)
    job.pool.publish(weights(0))
    place = (Fleet, "activate") if moment == "while the new engines start" else (EnginePool, "publish")
    method = getattr(*place)

    def dies_meanwhile(*args: Any) -> Any:
        if 0 in pods.nodes:
            pods.leave(0)
        return method(*args)

    monkeypatch.setattr(*place, dies_meanwhile)
    try:
        with pytest.raises(EngineStartError):
            job.pool.regroup(2)
        assert (job.pool.tp_size, job.pool.serving()) == (1, [])
        lost: set[int] = set()
        while len(lost) < 2:
            engine = lost_engine(job.next_event())
            job.pool.replace(engine)  # Nobody wants another of the other size.
            lost |= {engine} & {handle.engine for handle in job.pool._fleet}
    finally:
        pods.join(0)
    assert {job.next_event() for _ in range(2)} == {EngineJoined(engine) for engine in lost}
    for engine in lost:
        job.samples(engine, policy_version=0)


def lost_engine(event: Event) -> int:
    """The engine of an event that must be its loss."""
    assert isinstance(event, EngineLost), event
    return event.engine


class Owner:
    """A trainer, as far as weights are concerned: they are gone when it is."""

    def put(self, part: Weights) -> Any:
        """In a list, since Ray would replace a reference by what it refers to."""
        return [ray.put(part)]

    def pid(self) -> int:
        return os.getpid()


def test_an_engine_that_hangs_in_a_step_is_lost_and_comes_back(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_engine, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(remote_engine, "STEP_LIMIT_S", 0.5)
    job = start(ONE_BY_TWO, step_s=3600.0)
    job.pool.publish(weights(0))
    job.pool.add(0, [request()])
    lost = job.next_event()
    assert isinstance(lost, EngineLost)
    assert (lost.engine, lost.reason) == (0, "the engine hangs: a step has taken more than 0 s")
    job.pool.replace(0)
    assert job.next_event() == EngineJoined(0)


def test_an_engine_that_falls_silent_is_lost(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_engine, "_SILENCE_LIMIT_S", 0.5)
    job = start(ONE_BY_TWO)
    events = [job.next_event(), job.next_event()]
    assert {event.engine for event in events if isinstance(event, EngineLost)} == {0, 1}
    assert all(isinstance(event, EngineLost) and "nothing was heard" in event.reason for event in events)


def test_weights_that_are_gone_with_their_trainer_leave_engines_waiting_for_others(start: Start) -> None:
    job = start(TWO_BY_ONE)
    outside = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    owner = ray.remote(Owner).options(num_cpus=0, label_selector=outside).remote()
    lost = weights(1, lambda part: ray.get(owner.put.remote(part))[0])
    process = psutil.Process(ray.get(owner.pid.remote()))
    ray.kill(owner)
    process.wait(timeout=60)  # Until then, engines can fetch them, though Ray may call the actor dead.
    with pytest.raises(TrainerLost, match="the published weights are gone"):
        job.pool.publish(lost)
    assert job.pool.serving() == []
    job.lose(0)
    assert lost_engine(job.next_event()) == 0
    job.pool.replace(0)
    event = job.next_event()
    assert isinstance(event, WeightsLost) and "no engine has the weights" in event.reason
    job.pool.publish(weights(2))
    assert job.pool.serving() == [0, 1]
    job.samples(0, policy_version=2)


class BrokenCopies(StoredWeights):
    """Weights whose copies cannot be made, for a reason that nobody has thought of."""

    def stored(self) -> StoredWeights:
        raise RuntimeError("CUDA out of memory")


def test_an_engine_that_cannot_be_given_the_weights_is_lost_again(start: Start) -> None:
    """Otherwise a round without other engines would wait for it for ever."""
    job = start(TWO_BY_ONE)
    sent = weights(1)
    job.pool.publish(BrokenCopies(sent.buckets, sent.checksum, 1))
    job.lose(0)
    assert lost_engine(job.next_event()) == 0
    job.pool.replace(0)
    assert job.next_event() == EngineLost(0, "CUDA out of memory")


def test_a_wait_for_engines_that_start_ends_when_the_job_is_to_stop() -> None:
    class Starting:
        engine, is_placed = 0, True

    def stopped() -> None:
        raise Interrupted("the pod was asked to stop")

    def join(handle: EngineHandle) -> None:
        over.wait(LIMIT_S)

    over, joining, engine = threading.Event(), Joining(), Starting()
    joining.begin(engine, join)  # type: ignore[arg-type]
    with pytest.raises(Interrupted):
        joining.wait(stopped)
    over.set()
    joining.wait(lambda: None)


def test_while_weights_are_delivered_the_pool_says_how_many_engines_have_them(start: Start) -> None:
    job = start(TWO_BY_ONE)
    seen: list[tuple[bool, int]] = []

    class Watched(StoredWeights):
        def deliver(self, engines: Sequence[EngineHandle], delivered: Delivered) -> list[Outcome]:
            seen.append((job.pool.delivered is delivered, delivered.num_engines))
            outcomes = super().deliver(engines, delivered)
            assert delivered.num_confirmed == len(engines)
            return outcomes

    sent = weights(1)
    assert job.pool.delivered is None
    job.pool.publish(Watched(sent.buckets, sent.checksum, 1))
    assert seen == [(True, 2)]
    assert job.pool.delivered is None


class NoCopies(StoredWeights):
    """Weights that went straight from a trainer which is gone by now."""

    def stored(self) -> StoredWeights:
        raise TrainerLost("a trainer replica is gone")


def test_engines_that_come_back_when_nobody_has_the_weights_end_the_round(start: Start) -> None:
    job = start(TWO_BY_ONE)
    sent = weights(1)
    job.pool.publish(NoCopies(sent.buckets, sent.checksum, 1))
    job.lose(0)
    assert lost_engine(job.next_event()) == 0
    job.pool.replace(0)
    job.wait_started(0)
    job.samples(1, policy_version=1)  # A round that another engine can finish goes on.
    job.lose(1)
    assert lost_engine(job.next_event()) == 1
    job.pool.replace(1)
    assert isinstance(job.next_event(), WeightsLost)
