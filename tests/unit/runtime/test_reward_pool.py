"""The reward pool on reward pods that come and go."""

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from longshore.api import contract
from longshore.api.reward import Judge, OnRewardError, RewardFunction, RewardKind
from longshore.policy.draws import Draw
from longshore.policy.reward_pods import RewardPressure
from longshore.policy.round import ResponseId
from longshore_runtime.errors import UserError
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import ScoreItem, ScoreOutcome, ScoreResult, WorkerBroken
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.rollout import pod_workers, reward_workers
from longshore_runtime.rollout.call_watch import CallWatch
from longshore_runtime.rollout.events import Event, GroupScored, ResponseScored, RewardPulse, WorkerLost
from longshore_runtime.rollout.pulse import Pulse
from longshore_runtime.rollout.reward_pool import RewardPool
from longshore_runtime.rollout.reward_workers import Lane
from longshore_runtime.rollout.worker_hosts import LocalWorkers, WorkerGone
from longshore_runtime.sandbox.cases import Ran
from longshore_runtime.sandbox.detection import detect
from longshore_runtime.sandbox.worker import Worker as SandboxWorker
from longshore_runtime.sandbox.worker import default_python
from longshore_runtime.types import Completion, FinishReason, PromptRecord, TokenRun
from tests.unit.runtime.reward_servers import Pods

LIMIT_S = 120.0
NUM_PODS = 2
REPOSITORY = Path(__file__).parents[3]
UNGRADABLE = 7
"""A draw whose response exceeds the context of the judge."""
TOO_LONG = 5_000
JUDGE = Judge(model_path="judge", prompt_template="{response}", score_pattern=r"(\d)", max_score=9)


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
            case Failure.HANGS:
                Path(self.directory, "begun").touch()
                threading.Event().wait()


class Failure(StrEnum):
    """How a worker does not start."""

    RAISES = "r"
    HANGS = "h"
    """After it has said so, by the file `begun`."""


@dataclass
class FragileScorer:
    """Scores when the pipe lets it, and breaks where there is such a file."""

    directory: Path
    report: None = None

    def prepare(self) -> None:
        """Nothing."""

    def close(self) -> None:
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


@pytest.fixture
def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pods]:
    """No reward pod is there yet."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setattr(reward_workers, "CallWatch", partial(CallWatch, check_s=0.05))
    monkeypatch.setattr(pod_workers, "_TICK_S", 0.02)
    pods = Pods(tmp_path)
    yield pods
    pods.close()


@pytest.fixture
def driver(pods: Pods, request: pytest.FixtureRequest) -> Iterator[Driver]:
    """A pool whose workers wait for pods; the parameter: options of its function."""
    options: dict[str, Any] = {"timeout_s": LIMIT_S, **getattr(request, "param", {})}
    function = RewardFunction(
        name="gate", kind=RewardKind.PYTHON, **{"import_path": "tests.unit.runtime.gate:gate", **options}
    )
    pods.factory = ScorerFactory((function,), "output")
    lane = Lane((function,), pods.host(NUM_PODS), is_sized=True)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    clock = Hands()
    told: list[RewardPressure] = []
    pool = RewardPool([lane], ScorerFactory((), "output"), Characters(), events, clock, told.append)
    pool.use([record(index) for index in range(8)])
    yield Driver(pool, events, clock, told)
    pool.stop()


def judges(pods: Pods, factory: ScorerFactory, options: Mapping[str, Any], **lane: float) -> Driver:
    """A pool whose judges wait for pods."""
    function = RewardFunction(name="gate", kind=RewardKind.JUDGE, judge=JUDGE, **options)
    pods.factory = replace(factory, functions=(function,))
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    clock = Hands()
    lanes = [Lane((function,), pods.host(NUM_PODS), is_sized=True, **lane)]
    pool = RewardPool(lanes, factory, Characters(), events, clock, lambda _: None)
    pool.use([record(index) for index in range(8)])
    return Driver(pool, events, clock, [])


@pytest.fixture
def judge(pods: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """Real judges, on a model that answers with a digit that follows from the response."""
    from tests.e2e.reward_inputs import write_judge

    write_judge(tmp_path / "judge")
    replaces = {"on_error": OnRewardError.REPLACE}
    monkeypatch.setenv(contract.ENV_STORAGE, str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    driver = judges(pods, ScorerFactory((), "output"), replaces)
    yield driver
    driver.pool.stop()


@pytest.fixture
def fragile(pods: Pods, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Driver]:
    """Judges that break as the files of `tmp_path` say; the parameters: how the first do not start, and a limit."""
    failures, limit_s = getattr(request, "param", ("", LIMIT_S))
    (tmp_path / "failing-starts").write_text("".join(failures))
    driver = judges(pods, Fragile((), "output", directory=str(tmp_path)), {}, start_limit_s=limit_s, start_wait_s=0.01)
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
    """Pod 0 is there, pod 1 is not; asked for after the driver, which knows the function."""
    pods.join(0)
    return pods


def test_workers_join_with_their_pod_and_score(driver: Driver, one_pod: Pods) -> None:
    driver.serve(0, 1, 2)
    assert driver.pool.pressure(0.0) == RewardPressure(3, 0.0, 0, 0)
    groups = driver.until_scored(3)
    assert [group.draw.index for group in groups] == [0, 1, 2]
    assert {score.reward for group in groups for score in group.scores} == {1.0}
    assert driver.pool.pressure(0.0) == RewardPressure(0, 0.0, 1, 0)


def test_pods_that_come_go_and_come_back_bring_and_take_their_workers(driver: Driver, one_pod: Pods) -> None:
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
    driver: Driver, one_pod: Pods, pipe: Path
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


def test_what_ran_on_a_lost_pod_is_scored_again_elsewhere(driver: Driver, one_pod: Pods, pipe: Path) -> None:
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


def test_the_pressure_tells_who_waits_and_for_how_long(driver: Driver, one_pod: Pods, pipe: Path) -> None:
    driver.until_workers(1)
    driver.pool.use([record(0, str(pipe)), *(record(index) for index in range(1, 6))])
    driver.serve(0, 1)
    driver.finish(2, 3)
    driver.clock.time_s = 7.0
    assert driver.pool.pressure(7.0) == RewardPressure(3, 7.0, 1, 1)
    pipe.write_text("1")
    driver.until_scored(2)
    driver.until(lambda: driver.pool.pressure(7.0) == RewardPressure(0, 0.0, 1, 0))


def test_the_pressure_is_told_by_pulses_and_at_the_end_of_a_round(driver: Driver, one_pod: Pods, pipe: Path) -> None:
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
def test_a_function_that_can_score_nothing_ends_the_job(driver: Driver, one_pod: Pods) -> None:
    """Its worker says so when it should be ready, before anything is scored and whatever `onError` is."""
    with pytest.raises(UserError, match=r"reward.functions\[gate\].importPath: 'nowhere:score' cannot be imported"):
        driver.until_workers(1)


def test_a_judge_scores_all_that_wait_in_one_call_and_fails_only_what_it_cannot_grade(
    judge: Driver, one_pod: Pods
) -> None:
    from longshore_runtime.backends.tiny_model import build_tokenizer

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


def test_a_judge_that_is_free_takes_what_came_while_it_was_busy(fragile: Driver, one_pod: Pods, tmp_path: Path) -> None:
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
    fragile: Driver, one_pod: Pods, tmp_path: Path
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
    fragile: Driver, one_pod: Pods, tmp_path: Path
) -> None:
    (tmp_path / "broken").touch()
    fragile.serve(0, 1)
    assert [group.error for group in fragile.until_scored(2)] == [None, None]
    assert fragile.pool.stats.num_faults == 2


def test_a_worker_that_hangs_is_replaced_and_its_responses_are_scored_again(
    fragile: Driver, one_pod: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_workers, "_OVERTIME", 0.0)
    monkeypatch.setattr(reward_workers, "_GRACE_S", 2.0)
    (tmp_path / "hangs").touch()
    fragile.serve(0, 1)
    assert [group.error for group in fragile.until_scored(2)] == [None, None]
    assert fragile.pool.stats.num_faults == 2


@pytest.mark.parametrize("fragile", [([Failure.RAISES] * 2, LIMIT_S)], indirect=True)
def test_a_worker_that_does_not_start_is_started_again(fragile: Driver, one_pod: Pods) -> None:
    fragile.serve(0)
    assert [group.error for group in fragile.until_scored(1)] == [None]
    assert fragile.pool.stats.num_faults == 0


@pytest.mark.parametrize(
    ("fragile", "reason"),
    [
        (
            ([Failure.RAISES] * 3, LIMIT_S),
            r"the reward worker failed \(RuntimeError: CUDA error: the MPS server is not ready\)",
        ),
    ],
    indirect=["fragile"],
)
def test_three_workers_in_a_row_that_do_not_start_end_the_job(fragile: Driver, one_pod: Pods, reason: str) -> None:
    told = rf"^reward.functions\[gate\]: the worker did not start, 3 times in a row: {reason}$"
    with pytest.raises(UserError, match=told):
        fragile.until_workers(1)


@pytest.mark.parametrize("fragile", [([Failure.HANGS] * 3, 0.01)], indirect=True)
def test_workers_that_hang_while_they_start_end_the_job_as_well(fragile: Driver, one_pod: Pods) -> None:
    with pytest.raises(UserError, match=r"3 times in a row: it hangs: it starts for more than 0.01 s \(the log of"):
        fragile.until_workers(1)


@pytest.mark.parametrize("fragile", [([Failure.HANGS] * 3, LIMIT_S)], indirect=True)
def test_workers_that_go_with_their_pods_while_they_start_do_not_count(
    fragile: Driver, one_pod: Pods, tmp_path: Path
) -> None:
    for _ in range(3):
        fragile.until_there(tmp_path / "begun")
        one_pod.leave(0)
        fragile.until_lost()
        one_pod.join(0)
    fragile.until_workers(1)


def test_a_program_under_which_every_sandbox_dies_scores_0_and_does_not_end_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = SandboxWorker.run

    def killed(worker: SandboxWorker, source: bytes, *arguments: Any, **options: Any) -> Ran:
        """Under every program but the trial."""
        if source != b"pass":
            os.kill(worker.pid, signal.SIGKILL)
        return run(worker, source, *arguments, **options)

    monkeypatch.setattr(SandboxWorker, "run", killed)
    function = RewardFunction(name="gate", kind=RewardKind.CODE, retries=1, on_error=OnRewardError.REPLACE)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    clock, found = Hands(), list[Surroundings]()
    lane = Lane((function,), LocalWorkers(1))
    pool = RewardPool([lane], ScorerFactory((), "output"), Characters(), events, clock, on_worker=found.append)
    driver = Driver(pool, events, clock, [])
    pool.use([replace(record(0), fields={"tests": [{"stdin": "", "stdout": ""}]}, source="d, line 1")])
    driver.serve(0)
    (group,) = driver.until_scored(1)
    pool.stop()
    assert group.error is None
    assert [score.reward for score in group.scores] == [0.0]
    assert found[0].sandbox is not None
    assert found[0].sandbox.available == detect(default_python()).available


class Mortal:
    """A `WorkerHost` and its `Worker`: whatever is scored ends the worker."""

    num_places = 1

    def ask_for(self, place: int, factory: ScorerFactory, wait_s: float) -> "Mortal":
        self.node, self.ready, self.gone = Future[str](), Future[Surroundings](), Future[str]()
        self.node.set_result("the pod")
        self.ready.set_result(Surroundings())
        return self

    def score(self, function: str, items: Sequence[ScoreItem]) -> "Future[list[ScoreOutcome]]":
        answer = Future[list[ScoreOutcome]]()
        answer.set_exception(WorkerGone("killed"))
        self.gone.set_result("killed")
        return answer

    def kill(self) -> None: ...

    def close(self) -> None: ...

    def name(self, place: int) -> str:
        return "the pod"


def test_a_program_that_ends_every_worker_which_runs_it_scores_0_and_is_counted() -> None:
    function = RewardFunction(name="gate", kind=RewardKind.CODE, retries=1)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    clock = Hands()
    pool = RewardPool([Lane((function,), Mortal())], ScorerFactory((), "output"), Characters(), events, clock)
    driver = Driver(pool, events, clock, [])
    pool.use([replace(record(0), fields={"tests": [{"stdin": "", "stdout": ""}]}, source="d, line 1")])
    driver.serve(0)
    (group,) = driver.until_scored(1)
    pool.stop()
    assert group.error is None
    assert [score.reward for score in group.scores] == [0.0]
    assert (pool.stats.num_broken, pool.stats.num_faults) == (1, 2)


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


@pytest.mark.parametrize("driver", [{"import_path": "nowhere:score"}], indirect=True)
def test_a_reward_that_cannot_be_imported_is_known_once_its_pod_is_there(pods: Pods, driver: Driver) -> None:
    other = GroupScored(Draw(0, 0))
    driver.events.put(other)
    pods.join(0)
    with pytest.raises(UserError, match=r"reward\.functions\[gate\]\.importPath: 'nowhere:score' cannot be imported"):
        driver.pool.wait_ready(LIMIT_S)
    pods.leave(0)
    assert driver.events.get(timeout=0) is other


def test_who_waits_for_workers_loses_no_event(pods: Pods, driver: Driver) -> None:
    others = [GroupScored(Draw(0, draw)) for draw in range(2)]
    for other in others:
        driver.events.put(other)
    pods.join(0)
    driver.pool.wait_ready(LIMIT_S)
    assert driver.pool.pressure(0.0).num_workers == 1
    assert [driver.events.get(timeout=0) for _ in others] == others
    pods.leave(0)
