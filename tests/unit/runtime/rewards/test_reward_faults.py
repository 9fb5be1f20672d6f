"""Rewards whose workers die, or find their sandbox broken: what it costs, and whom."""

import queue
import re
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

import pytest
import structlog

from longshore.api.reward import Judge, JudgePlacement, OnRewardError, RewardFunction, RewardKind
from longshore_runtime.judge.options import POOL_WAIT_S
from longshore_runtime.rewards.events import CheckDue, GroupScored
from longshore_runtime.rewards.pool import RewardPool
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import (
    RewardError,
    ScoreItem,
    ScoreOutcome,
    ScoreResult,
    WorkerBroken,
    WorkerDied,
)
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.rewards.transports.transport import WorkerPlace
from longshore_runtime.rewards.workers import WorkerGroup, call_limit_s
from longshore_runtime.rollout.events import Event
from tests.unit.runtime.reward_driver import JUDGE, Driver, ManualClock, record


class Mortal:
    """A `Transport`, one after the other: whatever is scored ends the worker, or finds its sandbox broken."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self._is_broken = is_broken

    def start(self, factory: ScorerFactory, wait_s: float) -> "Mortal":
        self.node, self.ready, self.death = Future[str](), Future[Surroundings](), Future[str]()
        self.node.set_result("the pod")
        self.ready.set_result(Surroundings())
        return self

    def score(self, function: str, items: Sequence[ScoreItem]) -> "Future[list[ScoreOutcome]]":
        answer = Future[list[ScoreOutcome]]()
        if self._is_broken:
            answer.set_result([WorkerBroken("the sandbox ends at once") for _ in items])
            return answer
        answer.set_exception(WorkerDied("killed"))
        self.death.set_result("killed")
        return answer

    def kill(self) -> None: ...


def test_a_worker_that_waits_for_the_pods_of_its_judge_does_not_count_as_hanging() -> None:
    judge = Judge(**{**JUDGE.model_dump(), "placement": JudgePlacement.POOL, "pool": {"replicas": 1}})
    function = RewardFunction(name="gate", kind=RewardKind.JUDGE, judge=judge)
    limit_s = call_limit_s(function, [ScoreItem("row 7", "prompt", "response", "", {})])
    assert limit_s > 2 * POOL_WAIT_S, "it may be asked twice, and wait each time"


def driver_of(worker: Mortal, function: RewardFunction) -> Driver:
    """A function whose workers are of this kind."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    clock = ManualClock()
    group = WorkerGroup((function,), [WorkerPlace("the pod", worker.start)])
    pool = RewardPool([group], ScorerFactory((function,), "output"), events, clock)
    pool.use([replace(record(0), fields={"tests": [{"stdin": "", "stdout": ""}]}, source="d, line 1")])
    return Driver(pool, events, clock, [])


def scored_by(worker: Mortal, function: RewardFunction | None = None) -> tuple[GroupScored, RewardPool]:
    """A program, by workers of this kind."""
    driver = driver_of(worker, function or RewardFunction(name="gate", kind=RewardKind.CODE, retries=1))
    driver.serve(0)
    (group,) = driver.until_scored(1)
    driver.pool.stop()
    return group, driver.pool


def test_a_program_that_ends_every_worker_which_runs_it_scores_0_and_is_counted() -> None:
    group, pool = scored_by(Mortal())
    assert group.error is None
    assert [score.reward for score in group.scores] == [0.0]
    assert (pool.stats.num_broken, pool.stats.num_faults) == (1, 2)


def test_where_the_sandbox_is_broken_for_every_program_none_scores_0() -> None:
    group, pool = scored_by(Mortal(is_broken=True))
    assert group.is_fatal
    assert group.error == "the sandbox ends at once (2 times)"
    assert pool.stats.num_broken == 0


def own(on_error: OnRewardError) -> RewardFunction:
    return RewardFunction(
        name="gate", kind=RewardKind.PYTHON, import_path="somewhere:gate", retries=1, on_error=on_error
    )


@pytest.mark.parametrize("on_error", list(OnRewardError))
def test_a_response_that_breaks_a_function_costs_its_group_or_the_job_as_configured(
    on_error: OnRewardError,
) -> None:
    """One odd response may end every worker that scores it, or have a service answer 500 each time."""
    group, pool = scored_by(Mortal(), own(on_error))
    assert "(2 times). Response: " in str(group.error)
    assert group.is_fatal == (on_error is not OnRewardError.REPLACE)
    assert pool.stats.num_faults == 2


class Failing(Mortal):
    """A worker that reports an error of the function for every response."""

    def score(self, function: str, items: Sequence[ScoreItem]) -> "Future[list[ScoreOutcome]]":
        answer = Future[list[ScoreOutcome]]()
        answer.set_result([RewardError(f"reward gate: {item.sample}: raised KeyError: 'label'") for item in items])
        return answer


def test_error_of_a_function_shows_response_and_row() -> None:
    group, _ = scored_by(Failing(), own(OnRewardError.FAIL))
    assert group.is_fatal
    assert re.fullmatch(
        r"reward gate: d, line 1, response 0 of draw 0-0: raised KeyError: 'label'\. Response: '.*'\. "
        r"Row: tests: \[\{'stdin': '', 'stdout': ''\}\]",
        str(group.error),
    )


def test_error_of_a_replaced_group_is_in_the_log() -> None:
    with structlog.testing.capture_logs() as logs:
        group, _ = scored_by(Failing(), own(OnRewardError.REPLACE))
    assert not group.is_fatal
    assert [entry["reason"] for entry in logs if "replaced" in entry["event"]] == [group.error]


def test_a_response_that_nobody_waits_for_does_not_end_the_job() -> None:
    driver = driver_of(Mortal(), own(OnRewardError.FAIL))
    driver.finish(0)
    driver.until(lambda: driver.pool.stats.num_faults == 2)
    assert driver.scored == []
    driver.serve(0)
    (group,) = driver.until_scored(1)
    driver.pool.stop()
    assert group.is_fatal, "now it is needed"


class Sound(Mortal):
    """A worker that answers at once."""

    def score(self, function: str, items: Sequence[ScoreItem]) -> "Future[list[ScoreOutcome]]":
        answer = Future[list[ScoreOutcome]]()
        answer.set_result([ScoreResult(1.0, 0.0) for _ in items])
        return answer


def test_an_answer_that_the_driver_has_not_read_for_long_is_in_time() -> None:
    driver = driver_of(Sound(), own(OnRewardError.FAIL))
    driver.until(lambda: driver.pool.is_complete)
    driver.serve(0)
    driver.clock.time_s = 100_000.0
    with structlog.testing.capture_logs() as logs:
        driver.pool.handle(CheckDue())
        (group,) = driver.until_scored(1)
    driver.pool.stop()
    assert [score.reward for score in group.scores] == [1.0]
    assert logs == [] and driver.pool.stats.num_faults == 0
