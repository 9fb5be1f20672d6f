"""An answer with one altered number is wrong, whatever the notation."""

import random
import re
from collections.abc import Iterator

import pytest

from longshore_runtime.rewards.maths.agreement import answers_agree
from tests.properties import examples

_NUMBERS = [
    "{a}", "-{a}", "{a}.{b}", "0.{a}{b}{c}{a}", "{a},{abc}", r"{a}\,{abc}", r"{a},\! {abc}", r"{a}\%", r"\${a}.{b}",
    "{a}/{b}", r"{a}\text{{ cm}}", r"{a}\text{{ m}}^2", r"{a}^\circ", "{a}:{b}", "{a} apples", "{a}.{b}e{c}",
]  # fmt: skip
_TERMS = [
    r"\frac{{{a}}}{{{b}}}", r"{a}\frac{{{b}}}{{{c}}}", r"{a}\sqrt{{{b}}}", r"{a}\pi", "{a}^{{{b}}}", "10^{{{a}}}",
    "{a}!", r"\ln {a}", r"\log_{{{a}}} {b}", "{a}+{b}i", r"\sqrt[3]{{{a}}}", r"{a}\cdot 10^{{{b}}}",
    r"\binom{{{abc}}}{{2}}", r"e^{{{a}}}", r"\frac{{{a}+\sqrt{{{b}}}}}{{{c}}}", "{a}_{{{b}}}",
]  # fmt: skip
_FORMULAS = [
    "{a}x^2+{b}x+{c}", r"\frac{{x+{a}}}{{x-{b}}}", "({a}x+{b})^3", r"\sin({a}x)", "e^{{{a}x}}", "{a}n+{b}",
    "x^{{{a}}}y", r"\begin{{pmatrix}}{a}&{b}\\{c}&-{a}\end{{pmatrix}}", "f'({a})", r"\frac{{{a}\pi}}{{{b}}}+2k\pi",
]  # fmt: skip
_LISTS = [
    "{a}, {b}", "{a}, {a}, {b}", r"{a} \text{{ or }} {b}", r"\{{{a}, {b}, {c}\}}", "({a}, {b})", "({a}, -{b}, {c})",
    "[{a}, {b})", r"(-\infty, {a}) \cup ({b}, \infty)", r"\pm {a}", r"{a} \pm \sqrt{{{b}}}",
    r"({a}, {b}), ({b}, {c})", "{a}; {b}", r"\frac{{1}}{{{a}}}, \frac{{1}}{{{b}}}",
]  # fmt: skip
_EQUATIONS = [
    "x = {a}", "f({a}) = {b}", "x_{a} = {b}", "x = {a}, y = {b}", r"x={a} \quad y={b}", r"x_1={a} \; x_2={b}",
    "x={a} y=-{b}", "{a}+{b}={sum}", r"\log_2({power})={exponent}", r"0.{ab} = {ab}\%",
    r"\frac{{{a}}}{{{b}}} \approx {ratio}", r"\frac{{{a}}}{{{b}}} \approx {ratio} \approx {rough}",
    "(x, y) = ({a}, {b})", "a_n = {a}n + {b}", r"\det A = {a}", r"\dim V = {a}", r"\text{{Area}} = {a}", "|z| = {a}",
    "x^2+{a}=0", "x^2 - {a}x + {b} = 0", "y = {a}x + {b}", "{a}x + {b}y = {c}",
    r"\begin{{vmatrix}}{a}&1\\3&2\end{{vmatrix}} = {double}", "{a} = {a}", "x = {a} + {b} = {sum}",
    r"n \equiv {a} \pmod{{{b}}}", r"AB = {a}", r"\angle ABC = {a}^\circ", r"v \cdot w = {a}",
    r"\sqrt{{{square}}} = {a}", r"S = \{{{a}, {b}\}}", r"P(X > {a}) = \frac{{{b}}}{{{abc}}}", r"x = \pm {a}",
    r"\lim_{{x \to {a}}} f(x) = {b}",
]  # fmt: skip
_INEQUALITIES = [
    "x > {a}", r"{a} < x \le {sum}", "x^2+{a}>0", "{a} < {sum}", "x + y < {a}", r"x \ne {a}", r"x \in [{a}, {sum})",
    r"x < {a} \text{{ or }} x > {sum}", "x^2 < -{a}",
]  # fmt: skip


def _filled(shape: str, rng: random.Random) -> str:
    a, b, c = rng.sample(range(11, 99), 3)
    exponent = rng.randrange(3, 12)
    values = {"a": a, "b": b, "c": c, "ab": a, "abc": rng.randrange(100, 999), "sum": a + b, "double": 2 * a - 3}
    values |= {"exponent": exponent, "power": 2**exponent, "ratio": f"{a / b:.3f}", "rough": f"{a / b:.1f}"}
    return shape.format(**values, square=a * a)


def _altered(answer: str, rng: random.Random) -> Iterator[str]:
    """Yield the answer with each of its numbers altered: by one, or in one digit."""
    for found in re.finditer(r"\d+", answer):
        digits = found.group()
        place = rng.randrange(len(digits))
        other = str((int(digits[place]) + rng.randrange(1, 10)) % 10)
        by_digit = digits[:place] + other + digits[place + 1 :]
        number = rng.choice([by_digit, str(int(digits) + 1).zfill(len(digits))])
        yield answer[: found.start()] + number + answer[found.end() :]


@pytest.mark.parametrize(
    ("shapes", "times"),
    [(_NUMBERS, 32), (_TERMS, 12), (_FORMULAS, 4), (_LISTS, 16), (_EQUATIONS, 16), (_INEQUALITIES, 8)],
    ids=["numbers", "terms", "formulas", "lists", "equations", "inequalities"],
)
def test_an_answer_with_one_altered_number_is_wrong(shapes: list[str], times: int) -> None:
    rng = random.Random(5)
    answers = [_filled(shape, rng) for shape in shapes for _ in range(examples(times))]
    assert [answer for answer in answers if not answers_agree(rf"\boxed{{{answer}}}", answer)] == []
    pairs = [(answer, altered) for answer in answers for altered in _altered(answer, rng)]
    assert [pair for pair in pairs if answers_agree(rf"\boxed{{{pair[1]}}}", pair[0])] == []
