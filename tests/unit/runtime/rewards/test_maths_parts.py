r"""Lists, brackets, equations and inequalities are compared part by part."""

import pytest

from longshore_runtime.rewards.maths.agreement import answers_agree


def _agree(reference: str, given: str) -> bool:
    return answers_agree(rf"Thus \boxed{{{given}}}.", reference)


@pytest.mark.parametrize(
    ("reference", "given"),
    [
        ("f(2)=5", "5"),
        ("5", "f(2)=5"),
        ("f(2)=5", "2^2+1=5"),
        (r"\log_2(32)=5", "5"),
        (r"\gcd(12,18)=6", "6"),
        (r"0.72 = 72\%", r"72\%"),
        (r"0.72 = 72\%", "0.72"),
        (r"\frac{40}{3} \approx 13.33", r"\frac{40}{3}"),
        (r"\frac{40}{3} \approx 13.33", "13.33"),
        (r"\frac{40}{3}", r"\frac{40}{3} \approx 13.33"),
        (r"\pi", r"\pi \approx 3.14"),
        (r"\text{Area} = 12", r"12\text{ cm}^2"),
        ("30", r"\angle ABC = 30^\circ"),
        ("8", "a + b = 3 + 5 = 8"),
        ("8", "f(3) = f(-3) + 6 = 2 + 6 = 8"),
        ("5", r"\begin{align*} x &= 2 + 3 \\ &= 5 \end{align*}"),
        ("x=5", "X=5"),
        ("x^2+y^2=25", "y^2=25-x^2"),
        ("y=2x+3", "2x-y+3=0"),
        (r"y=\frac{1}{x}", "xy=1"),
        ("x^2-5x+6=0", "2x^2-10x+12=0"),
        ("AB=BA", "BA=AB"),
        ("p(x)=q(x)", "q(x)=p(x)"),
        (r"A=\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"),
        (r"S = \{1, 2\}", r"\{2, 1\}"),
    ],
)
def test_an_equation_agrees_with_its_value_and_with_itself_in_other_words(reference: str, given: str) -> None:
    assert _agree(reference, given)


@pytest.mark.parametrize(
    ("reference", "given"),
    [
        ("f(2)=5", "f(2)=6"),
        ("f(2)=5", "f(3)=5"),
        ("f(2)=5", "1=2"),
        ("5+3=8", "1=2"),
        ("5+3=8", "5+3=9"),
        (r"\log_2(32)=5", r"\log_2(32)=6"),
        (r"\begin{vmatrix}1&2\\3&4\end{vmatrix}=-2", r"\begin{vmatrix}1&2\\3&5\end{vmatrix}=-2"),
        (r"\det A = 5", r"\det A = 6"),
        ("x^2+50=0", "x^2+121=0"),
        ("x^2+50>0", "x^2+121>0"),
        ("|z|=1", "1"),
        ("|z|=1", "|z|=2"),
        (r"\frac{40}{3} \approx 13.33", r"\frac{40}{3} \approx 13.34"),
        (r"\frac{66}{55} \approx 1.200", r"\frac{66}{56} \approx 1.200"),
        (r"0.72 = 72\%", r"0.73 = 73\%"),
        (r"0.72 = 72\%", r"0.72 = 73\%"),
        ("8", "a + b = 3 + 4 = 8"),
        ("x=5", "2x=10"),
        ("x^2-5x+6=0", "0"),
        ("f(x)=2x", "g(x)=2x"),
        (r"-\infty", "1"),
        (r"\ln 2", r"\ln 0"),
        (r"\gcd(k, p-1)", r"\gcd(k, p-2)"),
    ],
)
def test_an_equation_with_another_value_or_another_name_is_wrong(reference: str, given: str) -> None:
    assert not _agree(reference, given)


@pytest.mark.parametrize(
    ("reference", "given"),
    [
        (r"x=2 \quad y=3", "x=2, y=3"),
        (r"x=2 \; y=3", "y=3, x=2"),
        ("x=2, y=3", "2, 3"),
        ("(2,3)", "x=2, y=3"),
        ("x=2, y=3", "(x,y)=(2,3)"),
        ("1,1,2", "1,2,1"),
        (r"\{1,1,2\}", r"\{1,2\}"),
        (r"x=\pm 2", "-2, 2"),
        (r"2 \pm \sqrt{3}", r"2-\sqrt{3}, 2+\sqrt{3}"),
        (r"(1,2)\cup(3,\infty)", r"1<x<2 \text{ or } x>3"),
        (r"x \ne 2", r"(-\infty,2)\cup(2,\infty)"),
        (r"x \in [0,1)", r"0 \le x < 1"),
        ("x>3", "3<x"),
        ("x+y<3", "3>x+y"),
        (r"\mathbb{R}", r"(-\infty,\infty)"),
        (r"111, \! 111, \! 111", "111111111"),
        (r"11,\! 111,\! 111,\! 100", "11111111100"),
        ("3.5", "3{,}5"),
        ("0.125", "0{,}125"),
        ("$.48$", "0.48"),
        ("€5", "5 €"),
        ("12", "12 个"),
        ("6", "2(3)"),
        ("(B)", "B. 12"),
    ],
)
def test_parts_agree_in_other_notations(reference: str, given: str) -> None:
    assert _agree(reference, given)


@pytest.mark.parametrize(
    ("reference", "given"),
    [
        (r"x=2 \quad y=3", r"x=9 \quad y=3"),
        (r"x_1=2 \quad x_2=3", r"x_1=9 \quad x_2=3"),
        (r"x_1=2 \quad x_2=3", r"x_2=2 \quad x_2=3"),
        ("x=2, y=3", "3, 2"),
        ("(2,3)", "x=3, y=2"),
        ("1,1,2", "1,2"),
        ("1,1,2", "1,2,2"),
        (r"x=\pm 2", "2"),
        ("[0,1)", "0<x<1"),
        ("x>3", "x<3"),
        (r"111, \! 111, \! 111", "111"),
        ("12441600", "12441600.01"),
        ("0.19491119", "0.19491120"),
        (r"\sqrt{1000000000001}", r"\sqrt{1000000000000}"),
        ("(B)", "B. 12 or C. 13"),
        ("2(3)", "5"),
        ("1 2", "3"),
    ],
)
def test_one_other_part_makes_an_answer_wrong(reference: str, given: str) -> None:
    assert not _agree(reference, given)


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("So she makes $18 per day and the market takes $2.", "2"),
        ("He pays $100 + $10 = $110", "110"),
        ("It costs $.48", ".48"),
        ("**Final Answer:** .48", "0.48"),
        ("Final Answer: The largest $n$ is 34.", "34"),
        ("The value at $x=5$ is 34.", "34"),
        ("Thus $ x = 34 $.", "34"),
        ("Thus there are $34$ multiples of 3 between 1 and 103.", "34"),
    ],
)
def test_of_formulas_and_numbers_the_one_that_is_stated_last_counts(response: str, answer: str) -> None:
    assert answers_agree(response, answer)
    assert not answers_agree(response, "18")
