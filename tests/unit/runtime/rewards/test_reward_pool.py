"""The reward pool on reward pods that come and go."""

import os
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from longshore.api.reward import RewardFunction, Signature
from longshore.policy.draws import Draw
from longshore.policy.reward_pods import RewardPressure
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import FinishReason
from longshore_runtime.errors import UserError
from longshore_runtime.rewards import workers
from longshore_runtime.rewards.events import CheckDue
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import (
    ResponseScorer,
    ScoreItem,
    ScoreOutcome,
    ScoreResult,
    WorkerBroken,
)
from longshore_runtime.rollout.events import StopRequested, WeightsLost
from tests.unit.runtime.reward_driver import (
    LIMIT_S,
    Driver,
    completion,
    judges,
    pods_in,
    record,
    users_function,
)
from tests.unit.runtime.reward_servers import Pods

AN_HOUR_S = 3_600.0


@dataclass(frozen=True)
class Fragile(ScorerFactory):
    """Workers that do what stands in the files of a directory, as workers on a failing GPU would."""

    directory: str = ""

    def create(self, function: RewardFunction) -> ResponseScorer:
        starts = Path(self.directory, "failing-starts")
        if left := starts.read_text():
            starts.write_text(left[1:])
            self._fail(Failure(left[0]))
        return FragileScorer(Path(self.directory))

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


class ScorerHere(ResponseScorer):
    """Scores in the thread of its worker, without a process that begins and ends."""

    def score(self, item: ScoreItem) -> ScoreResult:
        (outcome,) = self.score_many([item])
        assert isinstance(outcome, ScoreResult)
        return outcome

    def close(self) -> None:
        """Nothing."""


@dataclass
class FragileScorer(ScorerHere):
    """Scores when the pipe lets it, and breaks where there is such a file."""

    directory: Path

    def score_many(self, items: Sequence[ScoreItem]) -> list[ScoreOutcome]:
        if (self.directory / "pipe").exists():
            (self.directory / "pipe").read_text()
        hangs = self.directory / "hangs"
        if hangs.exists():
            hangs.rename(self.directory / "hung")
            threading.Event().wait()
        broken = self.directory / "broken"
        if broken.exists():
            broken.unlink()
            return [WorkerBroken(f"reward gate: {item.sample}: the judge's GPU failed") for item in items]
        return [ScoreResult(1.0, 0.0) for _ in items]


class Gate:
    """Where scoring stops until somebody opens it."""

    def __init__(self) -> None:
        self._begun, self._opened = threading.Event(), threading.Event()

    def open(self) -> None:
        """Wait until a worker has begun to score, and let it go on."""
        assert self._begun.wait(LIMIT_S)
        self._opened.set()

    def pass_through(self) -> None:
        """The worker's side."""
        self._begun.set()
        assert self._opened.wait(LIMIT_S)


@dataclass(frozen=True)
class Gates(ScorerFactory):
    """Workers that stop at the gate that the answer of a row names."""

    gates: Mapping[str, Gate] = field(default_factory=dict)

    def create(self, function: RewardFunction) -> ResponseScorer:
        return GateScorer(self.gates)


@dataclass
class GateScorer(ScorerHere):
    """Stops at the gate that an item names."""

    gates: Mapping[str, Gate]

    def score_many(self, items: Sequence[ScoreItem]) -> list[ScoreOutcome]:
        for item in items:
            if item.answer:
                self.gates[item.answer].pass_through()
        return [ScoreResult(1.0, 0.0) for _ in items]


@dataclass(frozen=True)
class OfCut(ScorerFactory):
    """Workers whose reward is whether a response was cut."""

    def create(self, function: RewardFunction) -> ResponseScorer:
        return CutScorer()


class CutScorer(ScorerHere):
    """1 for a response that was cut."""

    def score(self, item: ScoreItem) -> ScoreResult:
        return ScoreResult(float(item.is_cut), 0.0)


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    """No reward pod is there yet."""
    with pods_in(tmp_path) as pods:
        yield pods


@pytest.fixture
def gates() -> Mapping[str, Gate]:
    """Two of them."""
    return {"first": Gate(), "second": Gate()}


@pytest.fixture
def driver(pods: Pods, gates: Mapping[str, Gate]) -> Iterator[Driver]:
    """A pool whose workers wait for pods."""
    with users_function(pods, Gates((), "output", gates=gates)) as driver:
        yield driver


@pytest.fixture
def fragile(
    pods: Pods, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Driver]:
    """Judges that break as the files of `tmp_path` say; the parameters: how the first ones do not start."""
    failures = getattr(request, "param", "")
    (tmp_path / "failing-starts").write_text("".join(failures))
    monkeypatch.setattr(workers, "START_WAIT_S", 0.01)
    driver = judges(pods, Fragile((), "output", directory=str(tmp_path)), {})
    yield driver
    driver.pool.stop()


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


def test_a_reward_function_learns_which_responses_were_cut(pods: Pods) -> None:
    with users_function(pods, OfCut((), "output")) as driver:
        pods.join(0)
        for index, reason in enumerate((FinishReason.STOP, FinishReason.LENGTH)):
            response = ResponseId(Draw(0, index), 0)
            driver.pool.score(response.draw, {response: replace(completion(response), finish_reason=reason)})
        groups = driver.until_scored(2)
        assert {group.draw.index: group.scores[0].reward for group in groups} == {0: 0.0, 1: 1.0}


def test_a_pool_that_is_ready_is_not_waited_for_again_and_ends_once(driver: Driver, one_pod: Pods) -> None:
    """A job that shares GPUs asks before it takes its turn, and when it begins; one that measures itself ends twice."""
    for _ in range(2):
        driver.pool.wait_ready(LIMIT_S)
    for _ in range(2):
        driver.pool.stop()


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
    driver: Driver, one_pod: Pods, gates: Mapping[str, Gate]
) -> None:
    one_pod.join(1)
    driver.until_workers(2)
    driver.pool.use([record(0, "first")])
    driver.serve(0)
    one_pod.leave(1)
    driver.until_workers(1)
    gates["first"].open()
    driver.until_scored(1)
    assert driver.pool.stats.num_faults == 0


def test_what_ran_on_a_lost_pod_is_scored_again_elsewhere(
    driver: Driver, one_pod: Pods, gates: Mapping[str, Gate]
) -> None:
    one_pod.join(1)
    driver.until_workers(2)
    driver.pool.use([record(0, "first"), record(1, "second")])
    driver.serve(0, 1)
    one_pod.leave(1)
    driver.until(lambda: driver.pool.stats.num_faults == 1)
    gates["first"].open()
    driver.until_scored(1)
    driver.until(lambda: driver.pool.pressure(0.0).num_busy == 1)
    gates["second"].open()
    assert [group.draw.index for group in driver.until_scored(2)] == [0, 1]
    assert driver.pool.stats.num_faults == 1


def test_a_request_that_a_pod_cannot_read_fails_at_once(pods: Pods) -> None:
    deep: Any = "nested more deeply than readers allow"
    for _ in range(220):
        deep = [deep]
    with users_function(pods, Gates((), "output"), signature=Signature.VERL, retries=0) as driver:
        pods.join(0)
        driver.pool.use([replace(record(0), fields={"deep": deep})])
        driver.serve(0)
        (group,) = driver.until_scored(1)
    assert group.is_fatal and "(its pod closed the connection)" in str(group.error)


def test_the_pressure_says_who_waits_and_for_how_long(driver: Driver, one_pod: Pods, gates: Mapping[str, Gate]) -> None:
    driver.until_workers(1)
    driver.pool.use([record(0, "first"), *(record(index) for index in range(1, 6))])
    driver.serve(0, 1)
    driver.finish(2, 3)
    driver.clock.time_s = 7.0
    assert driver.pool.pressure(7.0) == RewardPressure(3, 7.0, 1, 1)
    gates["first"].open()
    driver.until_scored(2)
    driver.until(lambda: driver.pool.pressure(7.0) == RewardPressure(0, 0.0, 1, 0))


def test_a_response_that_gets_a_worker_has_waited_until_then(
    driver: Driver, one_pod: Pods, gates: Mapping[str, Gate]
) -> None:
    driver.until_workers(1)
    driver.pool.use([record(0, "first"), record(1)])
    driver.serve(0, 1)
    driver.clock.time_s = 60.0
    gates["first"].open()
    driver.until_scored(2)
    assert driver.pool.stats.max_wait_s == 60.0


def test_the_pressure_is_reported_by_checks_and_at_the_end_of_a_round(
    driver: Driver, one_pod: Pods, gates: Mapping[str, Gate]
) -> None:
    driver.until_workers(1)
    driver.pool.use([record(0, "first"), record(1), record(2)])
    driver.serve(0)
    driver.finish(1, 2)
    driver.pressures.clear()
    driver.until(lambda: bool(driver.pressures))
    assert driver.pressures[0] == RewardPressure(2, 0.0, 1, 1)
    gates["first"].open()
    driver.until_scored(1)
    driver.pool.rest()
    assert driver.pressures[-1].queue_length == 0


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
    fragile: Driver, one_pod: Pods, tmp_path: Path
) -> None:
    (tmp_path / "hangs").touch()
    fragile.serve(0, 1)
    fragile.until_there(tmp_path / "hung")
    fragile.clock.time_s += AN_HOUR_S
    assert [group.error for group in fragile.until_scored(2)] == [None, None]
    assert fragile.pool.stats.num_faults == 2


@pytest.mark.parametrize("fragile", [[Failure.RAISES] * 2], indirect=True)
def test_a_worker_that_does_not_start_is_started_again(fragile: Driver, one_pod: Pods) -> None:
    fragile.serve(0)
    assert [group.error for group in fragile.until_scored(1)] == [None]
    assert fragile.pool.stats.num_faults == 0


@pytest.mark.parametrize("fragile", [[Failure.RAISES] * 3], indirect=True)
def test_three_workers_in_a_row_that_do_not_start_end_the_job(fragile: Driver, one_pod: Pods) -> None:
    reason = r"the reward worker failed \(RuntimeError: CUDA error: the MPS server is not ready\)"
    with pytest.raises(
        UserError, match=rf"^reward.functions\[gate\]: the worker did not start, 3 times in a row: {reason}$"
    ):
        fragile.until_workers(1)


@pytest.mark.parametrize("fragile", [[Failure.HANGS] * 3], indirect=True)
def test_workers_that_hang_while_they_start_end_the_job_as_well(fragile: Driver, one_pod: Pods, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"3 times in a row: it hangs: it starts for more than 1800 s \(the log of"):
        for _ in range(3):
            fragile.until_there(tmp_path / "begun")
            # Noticed by the first check since it began to count, and judged by the next.
            fragile.until_checked()
            fragile.clock.time_s += AN_HOUR_S
            fragile.until_checked()


@pytest.mark.parametrize("fragile", [[Failure.HANGS] * 3], indirect=True)
def test_workers_that_go_with_their_pods_while_they_start_do_not_count(
    fragile: Driver, one_pod: Pods, tmp_path: Path
) -> None:
    for _ in range(3):
        fragile.until_there(tmp_path / "begun")
        one_pod.leave(0)
        fragile.until_lost()
        one_pod.join(0)
    fragile.until_workers(1)


def test_checks_do_not_pile_up(driver: Driver) -> None:
    for _ in range(3):
        check = driver.events.get(timeout=LIMIT_S)
        assert check == CheckDue()
        with pytest.raises(queue.Empty):
            driver.events.get(timeout=0.2)
        driver.pool.handle(check)


def test_who_waits_for_workers_loses_no_event(pods: Pods, driver: Driver) -> None:
    others = [StopRequested(), WeightsLost("gone")]
    for other in others:
        driver.events.put(other)
    pods.join(0)
    driver.pool.wait_ready(LIMIT_S)
    assert driver.pool.pressure(0.0).num_workers == 1
    kept = [driver.events.get(timeout=0) for _ in range(driver.events.qsize())]
    assert [event for event in kept if event != CheckDue()] == others
    pods.leave(0)
