"""Every kind of reward function, with what it should think of some responses."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import psutil
import pytest

from longshore.api.reward import Code, Http, Judge, JudgePlacement, RewardFunction, RewardKind
from longshore_runtime.rewards.child_process import start_child
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import ResponseScorer, ScoreItem
from tests.contract.rewards.endpoint import Endpoint, serving

PATIENT_S: Final = 120.0
"""A limit that no response reaches that can be scored, however busy the machine is."""


@dataclass(frozen=True)
class Case:
    """A kind and its opinions."""

    kind: RewardKind
    right: str
    wrong: str
    answer: str
    row: Mapping[str, Any] = field(default_factory=dict)
    endless: str | None = None
    """A response that takes forever to score."""
    broken: str | None = None
    """A response that the function fails on."""
    late_is_fault: bool = False
    """Whether scoring that is cut off says something about the infrastructure, not about the response."""

    def item(self, response: str) -> ScoreItem:
        """A response to score."""
        return ScoreItem("data.jsonl, line 7, response 0-6-1", "a prompt", response, self.answer, self.row)


CASES: Final = {
    case.kind: case
    for case in (
        Case(RewardKind.TASK, "k3 k2 k1", "q9", "k3 k2 k1"),
        Case(RewardKind.MATHS, r"\boxed{\frac{1}{2}}", "#### 3", "#### 0.5", endless=r"\boxed{9^{9^{9^9}}}"),
        Case(RewardKind.PYTHON, "right", "wrong", "right", endless="never ends", broken="confuse"),
        Case(
            RewardKind.CODE,
            "Here it is:\n```python\nprint(2 * int(input()))\n```\n",
            "print(input())",
            "",
            {"tests": [{"stdin": "1\n", "stdout": "2\n"}, {"stdin": "4\n", "stdout": "8\n"}]},
            endless="while True: pass",
        ),
        Case(
            RewardKind.HTTP, "right", "wrong", "right", endless="hang", broken='body {"score": 1}', late_is_fault=True
        ),
        Case(RewardKind.JUDGE, "right", "wrong", "right", endless="never ends", broken="confuse", late_is_fault=True),
    )
}


def reward(prompt: str, response: str, answer: str) -> float:
    """A user's function."""
    del prompt
    while response == "never ends":
        time.sleep(60)
    if response == "confuse":
        raise ValueError("confused")
    return float(response == answer)


@pytest.fixture(scope="session")
def endpoint() -> Iterator[Endpoint]:
    """A scoring service and a judge."""
    with serving() as endpoint:
        yield endpoint


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    """One kind after the other."""
    return CASES[request.param]


@pytest.fixture
def limit_s() -> float:
    """For one response; parametrized where something is to be cut off."""
    return PATIENT_S


@pytest.fixture
def scorer(case: Case, endpoint: Endpoint, limit_s: float) -> Iterator[ResponseScorer]:
    """As a reward worker makes it; it must leave no process behind, but the one that is forked for mathematics."""
    start_child(RewardKind.MATHS).kill()
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    scorer = ScorerFactory((), output="").create(_function(case.kind, endpoint, limit_s))
    try:
        yield scorer
    finally:
        scorer.close()
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    _, left = psutil.wait_procs(left, timeout=120)
    assert not left


def _function(kind: RewardKind, endpoint: Endpoint, limit_s: float) -> RewardFunction:
    limits = Code(min_timeout_s=limit_s, max_timeout_s=limit_s)
    judge = Judge(placement=JudgePlacement.REMOTE, url=f"{endpoint.address}/v1")
    return RewardFunction(
        name="mine",
        kind=kind,
        timeout_s=limit_s,
        import_path=f"{__name__}:reward" if kind is RewardKind.PYTHON else None,
        code=limits,
        judge=judge if kind is RewardKind.JUDGE else None,
        http=Http(url=f"{endpoint.address}/score") if kind is RewardKind.HTTP else None,
    )
