"""Answers are compared as mathematics, not as text."""

import resource
from collections.abc import Iterator

import pytest

from longshore.api.reward import RewardFunction, RewardKind
from longshore_runtime.rewards.maths import answers_agree
from longshore_runtime.rewards.scorer import ChildScorer
from longshore_runtime.rewards.scoring import ScoreItem


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("so we get #### 72", "48 + 24 = <<48+24=72>>72\n#### 72"),
        (r"the answer is \boxed{1000}", "#### 1,000"),
        ("#### 1,234,567", "1234567"),
        (r"Therefore $x = \boxed{\frac{1}{2}}$", "0.5"),
        ("The final answer is 18.", "#### 18"),
        (r"\boxed{x^2+2x+1}", r"$(x+1)^2$"),
        (r"\boxed{3} and \boxed{4}", r"$\{3, 4\}$"),
        ("#### 3\n#### 4", "4"),
        (r"\boxed{2\sqrt{2}}", r"$\sqrt{8}$"),
        (r"\boxed{50\%}", "50"),
        (r"\boxed{\{2, 1\}}", r"$\{1, 2\}$"),
        (r"\boxed{(1, 2)}", r"$(1,2)$"),
        (r"\boxed{-\frac{3}{4}}", r"$-0.75$"),
    ],
)
def test_equal_values_agree_however_they_are_written(response: str, answer: str) -> None:
    assert answers_agree(response, answer)


@pytest.mark.parametrize("response", ["", "no idea", "#### 71", r"\boxed{72.5}", "xk3q!!", "####", r"\boxed{}"])
def test_other_values_and_no_answer_do_not(response: str) -> None:
    assert not answers_agree(response, "#### 72")


def test_several_boxes_are_one_answer_so_that_hedging_does_not_pay() -> None:
    assert not answers_agree(r"\boxed{3} or \boxed{4}", "#### 4")


def test_the_order_of_a_pair_counts() -> None:
    assert not answers_agree(r"\boxed{(2, 1)}", r"$(1,2)$")


def test_a_reference_without_mathematics_is_an_error_of_the_data() -> None:
    with pytest.raises(ValueError, match="holds no mathematical expression"):
        answers_agree("1", "#### none")


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


def test_memory_that_mathematics_may_use_is_limited(scorer: ChildScorer) -> None:
    sum_of_powers = "+".join(f"10^{{{300_000_000 + power}}}" for power in range(40))
    result = scorer.score(ScoreItem("row 1", "", rf"\boxed{{{sum_of_powers}}}", "#### 5", {}))
    assert result.reward == 0.0
