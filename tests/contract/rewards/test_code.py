"""Programs are worth what their test cases say, run in a real sandbox."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from longshore.api.reward import Code, RewardFunction, RewardKind, SandboxLayer
from longshore_runtime.rewards.kinds.code import CodeScorer
from longshore_runtime.rewards.scoring import RewardFault, RewardSetupError, ScoreItem, ScoreResult, WorkerBroken
from longshore_runtime.sandbox.cases import Ran
from longshore_runtime.sandbox.detection import detect
from longshore_runtime.sandbox.layers import Layer, LayerReport
from longshore_runtime.sandbox.worker import SandboxWorker
from tests.contract.rewards.conftest import PATIENT_S

DOUBLES = [{"stdin": f"{number}\n", "stdout": f"{2 * number}\n"} for number in range(4)]
CALLS = [{"entry": "double", "arguments": [number], "expected": 2 * number} for number in range(4)]
ONE_IS_SHORT = [PATIENT_S, 0.1, PATIENT_S, PATIENT_S]
"""Time limits of the cases."""
WRONG_FOR_TWO = "number = int(input())\nprint(5 if number == 2 else 2 * number)"


@pytest.fixture(scope="module")
def strict() -> Iterator[CodeScorer]:
    scorer = CodeScorer(function())
    yield scorer
    scorer.close()


@pytest.fixture(scope="module")
def lenient() -> Iterator[CodeScorer]:
    scorer = CodeScorer(function(partial_credit=True))
    yield scorer
    scorer.close()


def function(**code: Any) -> RewardFunction:
    patient = Code(min_timeout_s=PATIENT_S, max_timeout_s=PATIENT_S, **code)
    return RewardFunction(name="tests", kind=RewardKind.CODE, code=patient)


def scored(
    scorer: CodeScorer, program: str, tests: list[dict[str, Any]] | dict[str, Any], limits_s: list[float] | None = None
) -> ScoreResult:
    return scorer.score(ScoreItem("data.jsonl, line 3", "a prompt", program, "", {"tests": tests}, limits_s))


def test_a_program_that_passes_all_its_cases_is_worth_one(strict: CodeScorer) -> None:
    for program, tests in (
        ("print(2 * int(input()))", DOUBLES),
        ("def double(number):\n    return 2 * number", CALLS),
    ):
        result = scored(strict, program, tests)
        assert (result.reward, result.passed_all, result.timed_out) == (1.0, True, False)
        assert [run.case for run in result.runs] == [0, 1, 2, 3]


@pytest.mark.parametrize(("thinks", "reward"), [(True, 0.0), (False, 1.0)])
def test_a_program_of_a_response_that_was_cut_counts_if_it_is_an_answer(
    strict: CodeScorer, thinks: bool, reward: float
) -> None:
    program = "```python\nprint(2 * int(input()))\n```\nThis "
    response = f"<think>{program}" if thinks else f"<think>Double it.</think>{program}"
    item = ScoreItem("data.jsonl, line 3", "a prompt", response, "", {"tests": DOUBLES}, is_cut=True)
    assert strict.score(item).reward == reward


def test_rows_that_name_a_function_score_methods_of_a_solution_with_names_of_typing(strict: CodeScorer) -> None:
    program = "class Solution:\n    def double(self, numbers: List[int]) -> List[int]:\n        return {} * numbers"
    tests = {"fn_name": "double", "inputs": [[[1]], [[2, 3]]], "outputs": [[[1, 1]], [[2, 3, 2, 3]]]}
    rewards = [scored(strict, program.format(times), tests).reward for times in (2, 3)]
    assert rewards == [1.0, 0.0]


def test_without_partial_credit_the_first_failure_is_the_last_case_that_is_run(strict: CodeScorer) -> None:
    result = scored(strict, WRONG_FOR_TWO, DOUBLES)
    assert (result.reward, result.passed_all) == (0.0, False)
    assert [run.case for run in result.runs] == [0, 1, 2]


def test_with_partial_credit_every_case_runs_and_the_share_that_passed_is_the_reward(lenient: CodeScorer) -> None:
    result = scored(lenient, WRONG_FOR_TWO, DOUBLES)
    assert (result.reward, result.passed_all) == (0.75, False)
    assert [run.case for run in result.runs] == [0, 1, 2, 3]


def test_each_case_has_a_time_limit_of_its_own(lenient: CodeScorer) -> None:
    program = "number = int(input())\nwhile number == 1: pass\nprint(2 * number)"
    result = scored(lenient, program, DOUBLES, ONE_IS_SHORT)
    assert [run.timed_out for run in result.runs] == [False, True]
    assert result.runs[1].wall_s < PATIENT_S


def test_a_response_cut_off_in_one_case_is_worth_nothing_and_is_run_no_further(lenient: CodeScorer) -> None:
    program = "number = int(input())\nwhile number == 1: pass\nprint(2 * number)"
    result = scored(lenient, program, DOUBLES, ONE_IS_SHORT)
    assert (result.reward, result.timed_out, result.passed_all) == (0.0, True, False)
    assert [run.case for run in result.runs] == [0, 1]


@pytest.mark.parametrize("program", ["", "def f(:", "raise SystemExit(3)", "import os; os._exit(0)", "print(1e400)"])
def test_a_program_that_fails_in_whatever_way_is_worth_nothing(strict: CodeScorer, program: str) -> None:
    result = scored(strict, program, DOUBLES)
    assert (result.reward, result.timed_out) == (0.0, False)


def test_a_layer_that_the_job_asks_for_and_this_machine_lacks_refuses_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    report = LayerReport({layer: "no such kernel" if layer is Layer.LANDLOCK else None for layer in Layer})
    monkeypatch.setattr("longshore_runtime.sandbox.sandbox.detect", lambda python: report)
    with pytest.raises(
        RewardSetupError,
        match=r"^reward.functions\[tests\].code.requiredLayers: .* cannot have Landlock \(no such kernel\) here$",
    ):
        CodeScorer(function(required_layers=[SandboxLayer.LANDLOCK]))


def test_a_program_that_breaks_the_sandbox_repeatedly_is_worth_nothing_and_says_so(
    strict: CodeScorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SandboxWorker.run

    def broken_by_this_program(worker: SandboxWorker, source: bytes, *arguments: Any, **options: Any) -> Ran:
        if b"breaks" in source:
            os.kill(worker.pid, signal.SIGKILL)
        return run(worker, source, *arguments, **options)

    monkeypatch.setattr(SandboxWorker, "run", broken_by_this_program)
    result = scored(strict, "print('breaks')", DOUBLES)
    assert (result.reward, result.timed_out, result.runs) == (0.0, False, ())
    assert result.broken == (
        "data.jsonl, line 3 broke the sandbox: the sandbox died 3 times on one program, and on no other"
    )
    assert scored(strict, "print(2 * int(input()))", DOUBLES).reward == 1.0


def test_a_sandbox_that_dies_on_every_program_is_a_worker_fault_and_never_a_reward(
    strict: CodeScorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SandboxWorker, "run", dying(SandboxWorker.run))
    with pytest.raises(
        WorkerBroken,
        match=r"^reward tests: data.jsonl, line 3: the sandbox died 3 times .*, and on one that does nothing$",
    ):
        scored(strict, "print(2 * int(input()))", DOUBLES)
    with pytest.raises(RewardFault, match=r"^reward tests: the sandbox died 3 times"):
        CodeScorer(function())
    monkeypatch.undo()
    assert scored(strict, "print(2 * int(input()))", DOUBLES).reward == 1.0


def dying(run: Callable[..., Ran]) -> Callable[..., Ran]:
    """`SandboxWorker.run` on an interpreter that something kills."""

    def killed(worker: SandboxWorker, *arguments: Any, **options: Any) -> Ran:
        os.kill(worker.pid, signal.SIGKILL)
        return run(worker, *arguments, **options)

    return killed


def test_every_layer_that_the_machine_offers_is_used_also_if_none_is_required() -> None:
    scorer = CodeScorer(function(required_layers=[]))
    assert scorer.layers == detect_here()
    scorer.close()


def detect_here() -> frozenset[Layer]:
    from longshore_runtime.sandbox.worker import default_python

    return detect(default_python()).available
