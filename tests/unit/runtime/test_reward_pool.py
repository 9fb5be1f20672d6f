"""The reward pool on Ray nodes that come and go as reward pods do."""

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from longshore.api import contract
from longshore.api.names import Component
from longshore.api.reward import Judge, OnRewardError, RewardFunction, RewardKind
from longshore.policy.draws import Draw
from longshore.policy.reward_pods import RewardPressure
from longshore.policy.round import ResponseId
from longshore_runtime.backends.tiny_model import build_tokenizer
from longshore_runtime.cluster.placement import node_labels, placement
from longshore_runtime.cluster.ray_environment import RAY_ENVIRONMENT
from longshore_runtime.errors import UserError
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import ScoreItem, ScoreOutcome, ScoreResult, WorkerBroken
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.rollout import reward_workers
from longshore_runtime.rollout.events import Event, GroupScored, ResponseScored, RewardPulse, WorkerLost
from longshore_runtime.rollout.pulse import Pulse
from longshore_runtime.rollout.reward_pool import RewardPool
from longshore_runtime.rollout.reward_workers import Lane
from longshore_runtime.sandbox.cases import Ran
from longshore_runtime.sandbox.detection import detect
from longshore_runtime.sandbox.worker import Worker as SandboxWorker
from longshore_runtime.sandbox.worker import default_python
from longshore_runtime.types import Completion, FinishReason, PromptRecord, TokenRun
from tests.e2e.reward_inputs import write_judge

LIMIT_S = 120.0
NUM_PODS = 2
REPOSITORY = Path(__file__).parents[3]
UNGRADABLE = 7
"""A draw whose response exceeds the context of the judge."""
TOO_LONG = 5_000
JUDGE = Judge(model_path="judge", prompt_template="{response}", score_pattern=r"(\d)", max_score=9)


def gate(prompt: str, response: str, answer: str) -> float:
    """A reward that takes until somebody writes into the pipe that `answer` names, if it names one."""
    return 1.0 if not answer or Path(answer).read_text(encoding="utf-8") else 0.5


@dataclass(frozen=True)
class Fragile(ScorerFactory):
    """Workers that do what stands in the files of a directory, as workers on a failing GPU would."""

    directory: str = ""

    def create(self) -> Mapping[str, Any]:
        starts = Path(self.directory, "failing-starts")
        if left := starts.read_text():
            starts.write_text(left[1:])
            self._fail(Failure(left[0]))
        return {function.name: FragileScorer(Path(self.directory)) for function in self.functions}

    def _fail(self, failure: "Failure") -> None:
        match failure:
            case Failure.RAISES:
                raise RuntimeError("CUDA error: the MPS server is not ready")
            case Failure.DIES:
                os._exit(1)
            case Failure.HANGS:
                Path(self.directory, "begun").touch()
                threading.Event().wait()


class Failure(StrEnum):
    """How a worker does not start."""

    RAISES = "r"
    DIES = "d"
    HANGS = "h"
    """After it has said so, by the file `begun`."""


@dataclass
class FragileScorer:
    """Scores when the pipe lets it, and breaks where there is such a file."""

    directory: Path
    report: None = None

    def prepare(self) -> None:
        """Nothing."""

    def score_many(self, items: Sequence[ScoreItem]) -> list[ScoreOutcome]:
        if (self.directory / "pipe").exists():
            (self.directory / "pipe").read_text()
        hangs = self.directory / "hangs"
        if hangs.exists():
            hangs.unlink()
            threading.Event().wait()
        broken = self.directory / "broken"
        if broken.exists():
            broken.unlink()
            return [WorkerBroken(f"reward gate: {item.sample}: the judge's GPU failed") for item in items]
        return [ScoreResult(1.0, 0.0) for _ in items]


@dataclass(frozen=True)
class Dying(ScorerFactory):
    """Workers whose sandboxes are killed under every program but the trial."""

    def create(self) -> Mapping[str, Any]:
        run = SandboxWorker.run

        def killed(worker: SandboxWorker, source: bytes, *arguments: Any, **options: Any) -> Ran:
            if source != b"pass":
                os.kill(worker.pid, signal.SIGKILL)
            return run(worker, source, *arguments, **options)

        SandboxWorker.run = killed  # type: ignore[method-assign]  # In a worker process of its own.
        return super().create()


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
    calls: list[list[int]] = field(default_factory=lambda: [[]])
    """Draws whose responses were answered, by call; the last call is still open."""

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
            if isinstance(event, ResponseScored):
                self.calls[-1].append(event.task.response.draw.index)
                if event.is_last_of_call:
                    self.calls.append([])
            scored = self.pool.handle(event)  # type: ignore[arg-type]  # No engine and no trainer is here.
            if scored is not None:
                self.scored.append(scored)

    def until_lost(self) -> None:
        """Handle events up to the next that tells of a lost worker, and that one."""
        is_told = False
        while not is_told:
            event = self.events.get(timeout=LIMIT_S)
            is_told = isinstance(event, WorkerLost)
            self.pool.handle(event)  # type: ignore[arg-type]  # No engine and no trainer is here.

    def until_there(self, path: Path) -> None:
        """Handle events until a worker has made a file, which is gone afterwards."""
        while not path.exists():
            with contextlib.suppress(queue.Empty):
                self.pool.handle(self.events.get(timeout=0.05))  # type: ignore[arg-type]  # As above.
        path.unlink()

    def until_workers(self, num_workers: int) -> None:
        self.until(lambda: self.pool.pressure(0.0).num_workers == num_workers)

    def until_scored(self, num_groups: int) -> list[GroupScored]:
        self.until(lambda: len(self.scored) >= num_groups)
        return self.scored


def completion(response: ResponseId) -> Completion:
    """Of one character, by draw."""
    text = "x" * TOO_LONG if response.draw.index == UNGRADABLE else "abcdefgh"[response.draw.index]
    run = TokenRun(0, tuple(map(ord, text)), (0.0,) * len(text))
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


def judges(
    factory: ScorerFactory, options: Mapping[str, Any], environment: Mapping[str, str] = {}, **lane: float
) -> Driver:
    """A pool whose judges wait for pods."""
    function = RewardFunction(name="gate", kind=RewardKind.JUDGE, judge=JUDGE, **options)
    places = [
        placement(index, component=Component.REWARD, environment={"CUDA_VISIBLE_DEVICES": "", **environment})
        for index in range(NUM_PODS)
    ]
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    clock = Hands()
    lanes = [Lane((function,), places, is_sized=True, **lane)]
    pool = RewardPool(lanes, factory, Characters(), events, clock, lambda _: None)
    pool.use([record(index) for index in range(8)])
    return Driver(pool, events, clock, [])


@pytest.fixture
def judge(pods: Pods, tmp_path: Path) -> Iterator[Driver]:
    """Real judges, on a model that answers with a digit that follows from the response."""
    write_judge(tmp_path / "judge")
    replaces = {"on_error": OnRewardError.REPLACE}
    driver = judges(ScorerFactory((), "output"), replaces, {contract.ENV_STORAGE: str(tmp_path)})
    yield driver
    driver.pool.stop()


@pytest.fixture
def fragile(pods: Pods, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Driver]:
    """Judges that break as the files of `tmp_path` say; the parameters: how the first do not start, and a limit."""
    failures, limit_s = getattr(request, "param", ("", LIMIT_S))
    (tmp_path / "failing-starts").write_text("".join(failures))
    driver = judges(Fragile((), "output", str(tmp_path)), {}, start_limit_s=limit_s, start_wait_s=0.01)
    yield driver
    driver.pool.stop()


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


def test_a_judge_scores_all_that_wait_in_one_call_and_fails_only_what_it_cannot_grade(
    one_pod: Pods, judge: Driver
) -> None:
    judge.serve(0, 1, UNGRADABLE, 2)
    groups = {group.draw.index: group for group in judge.until_scored(4)}
    assert judge.calls == [[0, 1, UNGRADABLE, 2], []]
    last_digits = {draw: build_tokenizer().convert_tokens_to_ids("abc"[draw]) % 10 for draw in range(3)}
    assert {draw: groups[draw].scores[0].reward for draw in range(3)} == {
        draw: pytest.approx(digit / 9) for draw, digit in last_digits.items()
    }
    failed = groups[UNGRADABLE]
    assert "exceed the" in str(failed.error) and not failed.is_fatal
    assert judge.pool.pressure(0.0) == RewardPressure(0, 0.0, 1, 0)


def test_a_judge_that_is_free_takes_what_came_while_it_was_busy(one_pod: Pods, fragile: Driver, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    fragile.until_workers(1)
    fragile.serve(0)
    fragile.finish(1, 2)
    fragile.serve(3)
    assert fragile.pool.pressure(0.0) == RewardPressure(3, 0.0, 1, 1)
    (tmp_path / "pipe").write_text("1")
    fragile.until(lambda: len(fragile.calls) == 2)
    (tmp_path / "pipe").write_text("1")
    fragile.until(lambda: len(fragile.calls) == 3)
    assert fragile.calls == [[0], [3, 1, 2], []]


def test_all_responses_of_a_call_whose_pod_is_lost_are_scored_again(
    one_pod: Pods, fragile: Driver, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    fragile.serve(0, 1, 2)
    fragile.until_workers(1)
    assert fragile.pool.pressure(0.0) == RewardPressure(0, 0.0, 1, 1)
    one_pod.leave(0)
    fragile.until(lambda: fragile.pool.stats.num_faults == 3)
    (tmp_path / "pipe").unlink()
    one_pod.join(0)
    assert {group.draw.index for group in fragile.until_scored(3)} == {0, 1, 2}
    assert fragile.calls[0] == [0, 1, 2] and sorted(fragile.calls[1:]) == [[], [0], [1], [2]]
    assert fragile.pool.stats.num_faults == 3


def test_a_worker_whose_gpu_failed_is_replaced_and_its_responses_are_scored_again(
    one_pod: Pods, fragile: Driver, tmp_path: Path
) -> None:
    (tmp_path / "broken").touch()
    fragile.serve(0, 1)
    assert [group.error for group in fragile.until_scored(2)] == [None, None]
    assert fragile.pool.stats.num_faults == 2


def test_a_worker_that_hangs_is_replaced_and_its_responses_are_scored_again(
    one_pod: Pods, fragile: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_workers, "_OVERTIME", 0.0)
    monkeypatch.setattr(reward_workers, "_GRACE_S", 1.0)
    (tmp_path / "hangs").touch()
    fragile.serve(0, 1)
    assert [group.error for group in fragile.until_scored(2)] == [None, None]
    assert fragile.pool.stats.num_faults == 2


@pytest.mark.parametrize("fragile", [([Failure.RAISES, Failure.DIES], LIMIT_S)], indirect=True)
def test_a_worker_that_does_not_start_is_started_again(one_pod: Pods, fragile: Driver) -> None:
    fragile.serve(0)
    assert [group.error for group in fragile.until_scored(1)] == [None]
    assert fragile.pool.stats.num_faults == 0


@pytest.mark.parametrize(
    ("fragile", "reason"),
    [
        (([Failure.RAISES] * 3, LIMIT_S), "CUDA error: the MPS server is not ready"),
        (([Failure.DIES] * 3, LIMIT_S), r"its worker process has died \(the log of its pod may say more\)"),
        (([Failure.RAISES, Failure.DIES, Failure.RAISES], LIMIT_S), "CUDA error: the MPS server is not ready"),
    ],
    indirect=["fragile"],
)
def test_three_workers_in_a_row_that_do_not_start_end_the_job(one_pod: Pods, fragile: Driver, reason: str) -> None:
    told = rf"^reward.functions\[gate\]: the worker did not start, 3 times in a row: {reason}$"
    with pytest.raises(UserError, match=told):
        fragile.until_workers(1)


@pytest.mark.parametrize("fragile", [([Failure.HANGS] * 3, 0.01)], indirect=True)
def test_workers_that_hang_while_they_start_end_the_job_likewise(one_pod: Pods, fragile: Driver) -> None:
    with pytest.raises(UserError, match=r"3 times in a row: it hangs: it starts for more than 0.01 s \(the log of"):
        fragile.until_workers(1)


@pytest.mark.parametrize("fragile", [([Failure.HANGS] * 3, LIMIT_S)], indirect=True)
def test_workers_that_go_with_their_pods_while_they_start_do_not_count(
    one_pod: Pods, fragile: Driver, tmp_path: Path
) -> None:
    for _ in range(3):
        fragile.until_there(tmp_path / "begun")
        one_pod.leave(0)
        fragile.until_lost()
        one_pod.join(0)
    fragile.until_workers(1)


def test_a_sandbox_that_dies_is_a_fault_and_past_the_limit_fails_the_job_with_the_reason(one_pod: Pods) -> None:
    function = RewardFunction(name="gate", kind=RewardKind.CODE, retries=1, on_error=OnRewardError.REPLACE)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    clock, found = Hands(), list[Surroundings]()
    lane = Lane((function,), [placement(0, component=Component.REWARD)])
    pool = RewardPool([lane], Dying((), "output"), Characters(), events, clock, on_worker=found.append)
    driver = Driver(pool, events, clock, [])
    pool.use([replace(record(0), fields={"tests": [{"stdin": "", "stdout": ""}]}, source="d, line 1")])
    driver.serve(0)
    (group,) = driver.until_scored(1)
    pool.stop()
    assert group.is_fatal
    assert "the sandbox died 3 times on one program (2 times)" in str(group.error)
    assert pool.stats.num_faults == 2
    assert [one.sandbox and one.sandbox.available for one in found] == [detect(default_python()).available] * 2


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
