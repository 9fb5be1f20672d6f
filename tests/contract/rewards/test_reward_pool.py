"""The reward pool with the scorers that jobs have: processes, sandboxes and judges on reward pods."""

import os
import queue
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longshore.api import contract
from longshore.api.reward import OnRewardError, RewardFunction, RewardKind
from longshore.policy.draws import Draw
from longshore.policy.reward_pods import RewardPressure
from longshore_runtime.errors import UserError
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.rollout.events import Event, GroupScored
from longshore_runtime.rollout.reward_pool import RewardPool
from longshore_runtime.rollout.reward_workers import RewardLane
from longshore_runtime.rollout.worker_hosts import LocalWorkers
from longshore_runtime.sandbox.cases import Ran
from longshore_runtime.sandbox.detection import detect
from longshore_runtime.sandbox.worker import SandboxWorker, default_python
from tests.unit.runtime.reward_driver import (
    LIMIT_S,
    UNGRADABLE,
    Characters,
    Driver,
    ManualClock,
    judges,
    pods_in,
    record,
    users_function,
)
from tests.unit.runtime.reward_servers import Pods

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pods]:
    """No reward pod is there yet; scoring processes find the functions of these tests."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    with pods_in(tmp_path) as pods:
        yield pods


@pytest.fixture
def driver(pods: Pods, request: pytest.FixtureRequest) -> Iterator[Driver]:
    """A pool whose workers wait for pods; the parameter: options of its function."""
    with users_function(pods, ScorerFactory((), "output"), **getattr(request, "param", {})) as driver:
        yield driver


@pytest.fixture
def one_pod(pods: Pods) -> Pods:
    """Pod 0 is there, pod 1 is not; asked for after the driver, which knows the function."""
    pods.join(0)
    return pods


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
    clock, found = ManualClock(), list[Surroundings]()
    lane = RewardLane((function,), LocalWorkers(1))
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


@pytest.mark.parametrize("driver", [{"import_path": "nowhere:score"}], indirect=True)
def test_a_reward_that_cannot_be_imported_is_known_once_its_pod_is_there(pods: Pods, driver: Driver) -> None:
    other = GroupScored(Draw(0, 0))
    driver.events.put(other)
    pods.join(0)
    with pytest.raises(UserError, match=r"reward\.functions\[gate\]\.importPath: 'nowhere:score' cannot be imported"):
        driver.pool.wait_ready(LIMIT_S)
    pods.leave(0)
    assert driver.events.get(timeout=0) is other


def test_what_a_process_on_a_lost_pod_was_scoring_is_scored_again_elsewhere(
    driver: Driver, one_pod: Pods, tmp_path: Path
) -> None:
    """To write into a pipe of `gate` is to wait until a process has begun to score, and to let it go on."""
    pipes = [tmp_path / "first", tmp_path / "second"]
    for pipe in pipes:
        os.mkfifo(pipe)
    one_pod.join(1)
    driver.until_workers(2)
    driver.pool.use([record(index, str(pipe)) for index, pipe in enumerate(pipes)])
    driver.serve(0, 1)
    one_pod.leave(1)
    driver.until(lambda: driver.pool.stats.num_faults == 1)
    pipes[0].write_text("1")
    driver.until_scored(1)
    driver.until(lambda: driver.pool.pressure(0.0).num_busy == 1)
    pipes[1].write_text("1")
    groups = driver.until_scored(2)
    assert [group.draw.index for group in groups] == [0, 1]
    assert {score.reward for group in groups for score in group.scores} == {1.0}
    assert driver.pool.stats.num_faults == 1
