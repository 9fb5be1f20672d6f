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
from longshore.policy.reward_pods import RewardPressure
from longshore_runtime.errors import UserError
from longshore_runtime.rewards.pool import RewardPool
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.rewards.transports.thread import ScoringThread
from longshore_runtime.rewards.transports.transport import WorkerPlace
from longshore_runtime.rewards.workers import WorkerGroup
from longshore_runtime.rollout.events import Event
from longshore_runtime.sandbox.cases import Ran
from longshore_runtime.sandbox.detection import detect
from longshore_runtime.sandbox.worker import SandboxWorker, default_python
from tests.unit.runtime.reward_driver import (
    LIMIT_S,
    UNGRADABLE,
    Driver,
    ManualClock,
    judges,
    pods_in,
    record,
    users_function,
)
from tests.unit.runtime.reward_servers import Pods


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    """No reward pod is there yet."""
    with pods_in(tmp_path) as pods:
        yield pods


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


def test_a_judge_scores_all_that_wait_in_one_call_and_fails_only_the_ungradable(judge: Driver, pods: Pods) -> None:
    from longshore_runtime.backends.tiny_model import build_tokenizer

    pods.join(0)
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
    group = WorkerGroup((function,), [WorkerPlace("this pod", ScoringThread)])
    pool = RewardPool([group], ScorerFactory((function,), "output"), events, clock, on_worker=found.append)
    driver = Driver(pool, events, clock, [])
    pool.use([replace(record(0), fields={"tests": [{"stdin": "", "stdout": ""}]}, source="d, line 1")])
    driver.serve(0)
    (group,) = driver.until_scored(1)
    pool.stop()
    assert group.error is None
    assert [score.reward for score in group.scores] == [0.0]
    assert found[0].sandbox is not None
    assert found[0].sandbox.available == detect(default_python()).available


def test_a_function_that_can_score_nothing_ends_the_job_once_its_pod_is_there(pods: Pods) -> None:
    """Whatever `onError` is, and before anything is scored."""
    options = {"import_path": "nowhere:score", "on_error": OnRewardError.REPLACE}
    with users_function(pods, ScorerFactory((), "output"), **options) as driver:
        pods.join(0)
        reported = r"^reward\.functions\[gate\]\.importPath: 'nowhere:score' cannot be imported"
        with pytest.raises(UserError, match=reported):
            driver.pool.wait_ready(LIMIT_S)
        pods.leave(0)
