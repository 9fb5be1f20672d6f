"""Test programs of assertions: what they ask for, and what they refuse to be."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore_runtime.sandbox import literals
from longshore_runtime.sandbox.assertions import read_test_program
from longshore_runtime.sandbox.cases import AssertionCase, CaseOutcome, Ran, parse_case, verdict
from longshore_runtime.sandbox.sandbox import Sandbox

_KEYS = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.tuples(st.integers(), st.text())
_LITERALS = st.recursive(
    _KEYS | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False) | st.sets(_KEYS, max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=8,
)
_CHECK = """
METADATA = {'author': 'somebody'}


def check(candidate):
    assert candidate([1, 2]) == {1: 'a', (2, 3): None}, "keys"
    assert sorted(candidate(text='x')) == [1, (2, 3)] or not candidate(text='y')
    assert abs(candidate(-1) - 1.5) < 1e-6
    assert math.isclose(candidate(10**3), math.pi, rel_tol=1e-3)
    assert candidate(()) is None

check(f)
"""
_COLLIDING = ",".join(str(factor * (2**61 - 1)) for factor in range(1, 3000))
"""Integers with the hash 0."""
_RIGHT: list[Any] = [{1: "a", (2, 3): None}, [1], [], 1.5000001, 3.1415, None]


def _outcome(test: str, values: list[Any]) -> CaseOutcome:
    case = parse_case({"entry": "f", "test": test}, "row 7")
    return verdict(case, Ran(0, 0.1, 0.1, claim=literals.dumps(values).encode())).outcome


@settings(max_examples=40)
@given(_LITERALS)
def test_literals_survive_json(value: Any) -> None:
    back = literals.loads(literals.dumps(value))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("text", ["{}", '{"dict": 3}', '{"set": [{"list": []}]}', '{"eval": "1"}', "["])
def test_what_is_no_literal_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not written by dumps|no kind of literal|unpack|Expecting"):
        literals.loads(text)


def test_assertions_hold_for_the_values_that_they_ask_for() -> None:
    assert _outcome(_CHECK, _RIGHT) is CaseOutcome.PASSED


@pytest.mark.parametrize(
    ("place", "wrong"),
    [(0, {"1": "a"}), (0, None), (1, [3]), (3, 1.6), (3, "1.5"), (4, 3.0), (5, 0)],
)
def test_one_that_does_not_hold_or_cannot_be_evaluated_fails(place: int, wrong: Any) -> None:
    values = [*_RIGHT]
    values[place] = wrong
    if place == 1:
        values[2] = [7]
    assert _outcome(_CHECK, values) is CaseOutcome.FAILED


def test_values_of_some_calls_only_are_not_enough() -> None:
    assert _outcome(_CHECK, _RIGHT[:-1]) is CaseOutcome.FAILED
    assert _outcome(_CHECK, []) is CaseOutcome.FAILED


def test_the_program_sees_the_calls_and_not_what_is_expected() -> None:
    case = parse_case({"entry": "f", "test": "assert f({1: 2}) == 'a secret'"}, "row 7")
    assert isinstance(case, AssertionCase)
    assert b"secret" not in case.shown


@pytest.mark.parametrize(
    "test",
    [
        "",
        "(",
        "pass",
        "for i in range(3):\n    assert f(i) == i",
        "assert f(f(1)) == 2",
        "assert f(*[1]) == 1",
        "assert f(open('/etc/passwd')) == 1",
        "assert os.system('true') == f(1)",
        "assert f(1).__class__",
        "assert (lambda: f(1))() == 1",
        "assert f(1) * 10**9",
        "assert list(range(f(1)))",
        "assert [f(i) for i in range(3)] == []",
        "x = __import__('os')",
        "assert True",
        "assert f(10**9**9) == 1",
        "assert f((10**1000)**1000) == 1",
        "assert f(1 << 10**9) == 1",
        "assert f(sum(range(10**10))) == 1",
        "assert f(1) == sum(range(10**10))",
        "assert sum(range(10**10), f(1)) == 1",
        "assert f(1) in range(10**10)",
        "assert f(1) == [0] * 10**3 * 10**9",
        "assert f(1) == 'a' * 10**9",
        "assert f(1) == '%999999999d' % 1",
        "assert f(1) == '%*d' % (10**9, 1)",
        "a = [0] * 1000\nb = [a] * 1000\nassert f([b] * 1000) == 1",
        "a = 10**3000\nassert f(a * a) == 1",
        "assert f(1) == sum([[0]] * 10**5, [])",
        "assert f(1) == sum(zip(range(10**5), range(10**5)), ())",
        "a = list(range(10**6))\n" + "assert f(1) == sum(a)\n" * 100,
        f"assert f(1) == {{{_COLLIDING}}}",
        f"a = [{_COLLIDING}]\nassert f(1) == set(a)",
        f"a = [{_COLLIDING}]\nassert f(1) == dict(zip(a, a))",
        f"a = [{_COLLIDING}]\nassert f(1) == {{tuple(a[:N]): 1 for N in a}}",
        f"assert f(1) == {{{_COLLIDING.replace(',', ': 0,')}: 0}}",
        f"a = {{{_COLLIDING[:2000]}}}\nb = {{{_COLLIDING[:2000]}}}\n" + "assert f(1) == (a == b)\n" * 1000,
        "\n".join(f"assert f({number}) == {number}" for number in range(20_000)),
        "assert " + " and ".join(f"f({number})" for number in range(20_000)),
        "assert f(1)" + " + 1" * 900,
    ],
)
def test_a_test_program_beyond_assertions_about_literals_is_refused_with_its_row(test: str) -> None:
    with pytest.raises(ValueError, match=r"^row 7: test: "):
        parse_case({"entry": "f", "test": test}, "row 7")


@pytest.mark.parametrize(
    ("condition", "right", "wrong"),
    [
        ("abs(f(1) - 0.1) < 10**-6", 0.1, 0.2),
        ("f(1) == 2**(3 + 1)", 16, 15),
        ("f(1) == 2**31 - 1", 2**31 - 1, 2**31),
        ("f(1) < 10**N", 1e-4, 1e-2),
        ("f(1) == sum(range(1001))", 500500, 0),
        ("f(1) == [0] * 10**3", [0] * 1000, [0]),
        ("f(1) == list(zip([1, 2], 'ab'))", [(1, "a"), (2, "b")], []),
        ("list(zip(f(1), reversed([1, 2]))) == [(3, 2)]", [3], [4]),
        ("f(1) == {1: (2, {3})}[1]", (2, {3}), (2, 3)),
        ("f(1) in range(0, 10, 2)", 4, 5),
        ("f(1) == '%.2f' % math.pi", "3.14", "3.1"),
        ("not f(1) and 1 < 2 <= 2 and (0 or [1][:1])", 0, 1),
        ("max(f(1), key=len) == 'abc'[:N]", ["", ""], ["a"]),
    ],
)
def test_constants_of_a_test_program_are_evaluated(condition: str, right: Any, wrong: Any) -> None:
    program = read_test_program(f"N = -3\nassert {condition}", "f")
    for _ in range(2):
        assert program.broken([right]) is None
        assert program.broken([wrong]) is not None


def test_calls_of_a_test_program_follow_one_another_in_one_program(sandbox: Sandbox) -> None:
    case = parse_case({"entry": "f", "test": "assert f({1: (2, 3)}) == {(2, 3): 1}\nassert f({}) == {}"}, "row 7")
    right = "def f(given): return {value: key for key, value in given.items()}"
    wrong = "def f(given): return {}"
    assert [sandbox.run(program, [case])[0].outcome for program in (right, wrong)] == [
        CaseOutcome.PASSED,
        CaseOutcome.FAILED,
    ]


@pytest.mark.parametrize(
    "program",
    [
        "class Yes:\n  def __eq__(self, other): return True\ndef f(given): return Yes()",
        "class Yes(dict):\n  def __eq__(self, other): return True\ndef f(given): return Yes()",
        "import os\ndef f(given):\n  os.write(3, b'true'); os._exit(0)",
        "import os\ndef f(given): os._exit(0)",
        "import os\ndef f(given):\n  os.write(3, b'{\"list\": [{\"complex\": [1%s, 0]}]}' % (b'0' * 400)); os._exit(0)",
        "import builtins\nbuiltins.AssertionError = None\ndef f(given): return 1",
        "def check(candidate): pass\ndef f(given): return 1",
    ],
)
def test_an_assertion_cannot_be_forged(sandbox: Sandbox, program: str) -> None:
    case = parse_case({"entry": "f", "test": "def check(c):\n    assert c(1) == {'a': 1}\ncheck(f)"}, "row 7")
    assert sandbox.run(program, [case])[0].outcome in (CaseOutcome.FAILED, CaseOutcome.ERROR)


def test_a_test_program_is_read_once() -> None:
    program = read_test_program(_CHECK, "f")
    assert [(list(call.arguments), dict(call.keywords)) for call in program.calls[:2]] == [
        ([[1, 2]], {}),
        ([], {"text": "x"}),
    ]
    assert len(program.assertions) == 5


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("round(f(1), -10**9) == 0", 123),
        ("round(155, f(1)) == 0", -(10**9)),
        ("round(155, f(1)) == 200", -2),
        ("round(f(1), 1) == 1.3", 1.26),
        ("sum(f(1), []) == [1, 2, 3]", [[1], [2, 3]]),
        ("sum(f(1), (0,)) == (0, 1)", [(1,)]),
        ("len(sum(f(1), [])) == 200_000", [[1]] * 200_000),
        ("sum(f(1), 1) == 7", [1, 2, 3]),
    ],
)
def test_no_value_of_a_program_makes_a_condition_take_long(condition: str, value: Any) -> None:
    (assertion,) = read_test_program(f"assert {condition}", "f").assertions
    assert assertion.holds([value])


def test_equal_values_count_once_where_a_test_program_makes_a_set() -> None:
    program = read_test_program(
        "assert f(1) == (set('ab' * 10**4), {-1, -2, 1, 1.0, True}, dict([(0, 1), [0, 2]]))", "f"
    )
    assert program.broken([({"a", "b"}, {-1, -2, 1}, {0: 2})]) is None


_LARGE = """
def f(number):
    return {chosen * NUMBER for chosen in range(1, number)}
"""


def test_a_large_value_is_judged_as_a_small_one(sandbox: Sandbox) -> None:
    case = parse_case({"entry": "f", "test": "assert f(5000) == set(range(1, 5000))"}, "row 7")
    outcomes = [sandbox.run(_LARGE.replace("NUMBER", factor), [case])[0] for factor in ("1", "2")]
    assert [result.outcome for result in outcomes] == [CaseOutcome.PASSED, CaseOutcome.FAILED]
    assert outcomes[1].detail == "does not hold: f(5000) == set(range(1, 5000))"


def test_a_value_that_takes_too_long_to_judge_is_timed_out(sandbox: Sandbox) -> None:
    claim = f'{{"list": [{{"set": [{",".join(str(factor * (2**61 - 1)) for factor in range(1, 40_000))}]}}]}}'
    program = f"import os\ndef f(number):\n  os.write(3, b'{claim}'); os._exit(0)"
    case = parse_case({"entry": "f", "test": "assert f(1) in ({1}, 'x' * 500_000)"}, "row 7")  # Room for large values.
    (result,) = sandbox.run(program, [case], timeouts_s=[1.0])
    assert result.outcome is CaseOutcome.TIMED_OUT
    assert result.detail == "returned a value that could not be judged within 1 s"
    assert result.wall_s >= 1.0
    (after,) = sandbox.run("def f(number): return {1}", [case])
    assert after.outcome is CaseOutcome.PASSED


def test_what_python_does_not_add_is_not_added() -> None:
    (assertion,) = read_test_program("assert sum(f(1), []) == [1]", "f").assertions
    assert not assertion.holds([["ab"]])
    assert not assertion.holds([[(1,)]])
