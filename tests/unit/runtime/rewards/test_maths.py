"""Answers are compared as mathematics, not as text."""

import pytest

from longshore_runtime.rewards.maths import answers_agree


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("so we get #### 72", "48 + 24 = <<48+24=72>>72\n#### 72"),
        (r"the answer is \boxed{1000}", "#### 1,000"),
        (r"Therefore $x = \boxed{\frac{1}{2}}$", "0.5"),
        ("The final answer is 18.", "#### 18"),
        (r"\boxed{x^2+2x+1}", r"$(x+1)^2$"),
    ],
)
def test_equal_values_agree_however_they_are_written(response: str, answer: str) -> None:
    assert answers_agree(response, answer)


@pytest.mark.parametrize("response", ["", "no idea", "#### 71", r"\boxed{72.5}", "xk3q!!"])
def test_other_values_and_no_answer_do_not(response: str) -> None:
    assert not answers_agree(response, "#### 72")


def test_a_reference_without_mathematics_is_an_error_of_the_data() -> None:
    with pytest.raises(ValueError, match="holds no mathematical expression"):
        answers_agree("1", "#### none")
