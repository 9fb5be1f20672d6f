"""The reward pool on Ray nodes that come and go as reward pods do."""

import os
import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from longshore.api.names import Component
from longshore.api.reward import OnRewardError, RewardFunction, RewardKind
from longshore.policy.draws import Draw
from longshore.policy.reward_pods import RewardPressure
from longshore.policy.round import ResponseId
from longshore_runtime.cluster.placement import node_labels, placement
from longshore_runtime.cluster.ray_environment import RAY_ENVIRONMENT
from longshore_runtime.errors import UserError
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rollout.events import Event, GroupScored, RewardPulse
from longshore_runtime.rollout.pulse import Pulse
from longshore_runtime.rollout.reward_pool import RewardPool
from longshore_runtime.rollout.reward_workers import Lane
from longshore_runtime.types import Completion, FinishReason, PromptRecord, TokenRun

LIMIT_S = 60.0
NUM_PODS = 2
REPOSITORY = Path(__file__).parents[3]


def gate(prompt: str, response: str, answer: str) -> float:
    """A reward that takes until somebody writes into the pipe that `answer` names, if it names one."""
    return 1.0 if not answer or Path(answer).read_text(encoding="utf-8") else 0.5


class Characters:
    """A tokenizer whose tokens are characters."""

    def encode(self, text: str, /, **options: Any) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, tokens: Sequence[int], /, **options: Any) -> str:
        return "".join(map(chr, tokens))

    def apply_chat_template(self, messages: Sequence[Any], /, **options: Any) -> str:
        raise AssertionError("no conversation is scored here")


@dataclass
class Hands:
    """A clock that is set by hand."""

    time_s: float = 0.0

    def now_s(self) -> float:
        return self.time_s


@dataclass
class Pods:
    """Ray nodes with the labels of reward pods."""

    cluster: Cluster
    nodes: dict[int, Any] = field(default_factory=dict)

    def join(self, index: int) -> None:
        self.nodes[index] = self.cluster.add_node(num_cpus=0, labels=node_labels(Component.REWARD, index))

    def leave(self, index: int) -> None:
        self.cluster.remove_node(self.nodes.pop(index))


@dataclass
class Driver:
    """A pool with one worker per pod, and the loop that a round runs around it."""

    pool: RewardPool
    events: "queue.SimpleQueue[Event]"
    clock: Hands
    told: list[RewardPressure]
    scored: list[GroupScored] = field(default_factory=list)

    def finish(self, *draws: int) -> list[ResponseId]:
        """A response of each draw finishes."""
        responses = [ResponseId(Draw(0, draw), 0) for draw in draws]
        for response in responses:
            self.pool.finished(response, completion(response))
        return responses

    def serve(self, *draws: int) -> None:
        """Groups of one response are served."""
        for draw in draws:
            response = ResponseId(Draw(0, draw), 0)
            self.pool.score(response.draw, {response: completion(response)})

    def until(self, holds: Callable[[], bool]) -> None:
        """Handle events until something holds."""
        while not holds():
            event = self.events.get(timeout=LIMIT_S)
            if isinstance(event, GroupScored):
                self.scored.append(event)
                continue
            scored = self.pool.handle(event)  # type: ignore[arg-type]  # No engine and no trainer is here.
            if scored is not None:
                self.scored.append(scored)

    def until_workers(self, num_workers: int) -> None:
        self.until(lambda: self.pool.pressure(0.0).num_workers == num_workers)

    def until_scored(self, num_groups: int) -> list[GroupScored]:
        self.until(lambda: len(self.scored) >= num_groups)
        return self.scored


def completion(response: ResponseId) -> Completion:
    run = TokenRun(0, (ord("x"),), (0.0,))
    return Completion(str(response), (run,), FinishReason.STOP, 0)


def record(index: int, answer: str = "") -> PromptRecord:
    return PromptRecord(index, "prompt", (1,), answer, rewards=("gate",))


@pytest.fixture(scope="module")
def pods() -> Iterator[Pods]:
    """A head, and no reward pod yet."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in RAY_ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        try:
            ray.init(address=cluster.address, log_to_driver=False)
            yield Pods(cluster)
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture
def driver(pods: Pods, request: pytest.FixtureRequest) -> Iterator[Driver]:
    """A pool whose workers wait for pods; the parameter: options of its function."""
    options: dict[str, Any] = {"timeout_s": LIMIT_S, **getattr(request, "param", {})}
    function = RewardFunction(name="gate", kind=RewardKind.PYTHON, **{"import_path": f"{__name__}:gate", **options})
    places = [placement(index, component=Component.REWARD) for index in range(NUM_PODS)]
    lane = Lane((function,), places, is_sized=True)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    clock = Hands()
    told: list[RewardPressure] = []
    pool = RewardPool([lane], ScorerFactory((), "output"), Characters(), events, clock, told.append)
    pool.use([record(index) for index in range(8)])
    yield Driver(pool, events, clock, told)
    pool.stop()


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A pipe for `gate`: to write into it is to wait until a worker has begun to score, and to let it go on."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.fixture
def one_pod(pods: Pods) -> Pods:
    """Pod 0 is there, pod 1 is not."""
    if 0 not in pods.nodes:
        pods.join(0)
    if 1 in pods.nodes:
        pods.leave(1)
    return pods


def test_workers_join_with_their_pod_and_score(one_pod: Pods, driver: Driver) -> None:
    driver.serve(0, 1, 2)
    assert driver.pool.pressure(0.0) == RewardPressure(3, 0.0, 0, 0)
    groups = driver.until_scored(3)
    assert [group.draw.index for group in groups] == [0, 1, 2]
    assert {score.reward for group in groups for score in group.scores} == {1.0}
    assert driver.pool.pressure(0.0) == RewardPressure(0, 0.0, 1, 0)


def test_pods_that_come_go_and_come_back_bring_and_take_their_workers(one_pod: Pods, driver: Driver) -> None:
    driver.until_workers(1)
    one_pod.join(1)
    driver.until_workers(2)
    one_pod.leave(1)
    driver.until_workers(1)
    driver.serve(0, 1)
    driver.until_scored(2)
    assert driver.pool.stats.num_faults == 0
    one_pod.join(1)
    driver.until_workers(2)


def test_work_goes_to_the_first_pods_so_that_the_pod_that_is_taken_away_has_none(
    one_pod: Pods, driver: Driver, pipe: Path
) -> None:
    one_pod.join(1)
    driver.until_workers(2)
    driver.pool.use([record(0, str(pipe))])
    driver.serve(0)
    one_pod.leave(1)
    driver.until_workers(1)
    pipe.write_text("1")
    driver.until_scored(1)
    assert driver.pool.stats.num_faults == 0


def test_what_ran_on_a_lost_pod_is_scored_again_elsewhere(one_pod: Pods, driver: Driver, pipe: Path) -> None:
    other = pipe.with_name("other")
    os.mkfifo(other)
    one_pod.join(1)
    driver.until_workers(2)
    driver.pool.use([record(0, str(pipe)), record(1, str(other))])
    driver.serve(0, 1)
    one_pod.leave(1)
    driver.until(lambda: driver.pool.stats.num_faults == 1)
    pipe.write_text("1")
    driver.until_scored(1)
    driver.until(lambda: driver.pool.pressure(0.0).num_busy == 1)
    other.write_text("1")
    assert [group.draw.index for group in driver.until_scored(2)] == [0, 1]
    assert driver.pool.stats.num_faults == 1


def test_the_pressure_tells_who_waits_and_for_how_long(one_pod: Pods, driver: Driver, pipe: Path) -> None:
    driver.until_workers(1)
    driver.pool.use([record(0, str(pipe)), *(record(index) for index in range(1, 6))])
    driver.serve(0, 1)
    driver.finish(2, 3)
    driver.clock.time_s = 7.0
    assert driver.pool.pressure(7.0) == RewardPressure(3, 7.0, 1, 1)
    pipe.write_text("1")
    driver.until_scored(2)
    driver.until(lambda: driver.pool.pressure(7.0) == RewardPressure(0, 0.0, 1, 0))


def test_the_pressure_is_told_by_pulses_and_at_the_end_of_a_round(one_pod: Pods, driver: Driver, pipe: Path) -> None:
    driver.until_workers(1)
    driver.pool.use([record(0, str(pipe)), record(1), record(2)])
    driver.serve(0)
    driver.finish(1, 2)
    driver.told.clear()
    driver.until(lambda: bool(driver.told))
    assert driver.told[0] == RewardPressure(2, 0.0, 1, 1)
    pipe.write_text("1")
    driver.until_scored(1)
    driver.pool.rest()
    assert driver.told[-1].queue_length == 0


@pytest.mark.parametrize("driver", [{"import_path": "nowhere:score", "on_error": OnRewardError.REPLACE}], indirect=True)
def test_a_function_that_can_score_nothing_ends_the_job(one_pod: Pods, driver: Driver) -> None:
    """Its worker says so when it should be ready, before anything is scored and whatever `onError` is."""
    with pytest.raises(UserError, match=r"reward.functions\[gate\].importPath: 'nowhere:score' cannot be imported"):
        driver.until_workers(1)


def test_pulses_do_not_pile_up() -> None:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    event = RewardPulse()
    pulse = Pulse(events, event, every_s=0.001)
    for _ in range(3):
        assert events.get(timeout=LIMIT_S) is event
        with pytest.raises(queue.Empty):
            events.get(timeout=0.05)
        pulse.answered()
    pulse.stop()
