"""Mathematics that overwhelms a computer costs a scoring process at most."""

import resource
from collections.abc import Iterator
from dataclasses import replace

import pytest

from longshore.api.reward import RewardFunction, RewardKind
from longshore_runtime.rewards.child_scorer import ChildScorer
from longshore_runtime.rewards.scoring import ScoreItem


@pytest.fixture(scope="module")
def scorer() -> Iterator[ChildScorer]:
    scorer = ChildScorer(RewardFunction(name="maths", kind=RewardKind.MATHS, timeout_s=1.0))
    yield scorer
    scorer.close()


@pytest.mark.parametrize(
    "response",
    [
        r"\boxed{9^{9^{9^{9}}}}",
        r"\boxed{10^{10^{10}} - 10^{10^{10}}}",
        r"\boxed{(10^9)!}",
        r"\boxed{" + r"\sqrt{" * 2_000 + "2" + "}" * 2_001,
        r"\boxed{" + "{" * 50_000 + "2" + "}" * 50_001,
        "#### " + "(" * 20_000 + "5" + ")" * 20_000,
        r"\boxed{" + "9" * 1_000_000 + "}",
        r"\boxed{(x+1)^{100000}}",
    ],
    ids=["tower", "difference", "factorial", "roots", "braces", "parentheses", "digits", "polynomial"],
)
def test_mathematics_that_overwhelms_a_computer_is_a_wrong_answer(scorer: ChildScorer, response: str) -> None:
    """Cut off from outside the process, or out of memory within it: never a fault, an error or a dead worker."""
    before_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    result = scorer.score(ScoreItem("row 1", "", response, "#### 5", {}))
    assert result.reward == 0.0
    scorer.close()
    peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    assert peak_bytes <= max(before_bytes, 2 << 30)


def test_what_a_cut_response_thinks_after_its_prompt_is_no_answer(scorer: ChildScorer) -> None:
    thought = ScoreItem("row 1", "2+3?<think>", r"perhaps \boxed{5}, but", "#### 5", {})
    given = replace(thought, prompt="2+3?")
    assert [scorer.score(replace(item, is_cut=True)).reward for item in (thought, given)] == [0.0, 1.0]


def test_memory_that_mathematics_may_use_is_limited(scorer: ChildScorer) -> None:
    sum_of_powers = "+".join(f"10^{{{300_000_000 + power}}}" for power in range(40))
    result = scorer.score(ScoreItem("row 1", "", rf"\boxed{{{sum_of_powers}}}", "#### 5", {}))
    assert result.reward == 0.0
