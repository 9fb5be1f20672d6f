"""Test cases: which are well formed, and which answers are right."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore_runtime.sandbox.cases import (
    MAX_EXPECTED_BYTES,
    CaseOutcome,
    FunctionCase,
    Ran,
    StdioCase,
    parse_case,
    verdict,
)

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def _returned(expected: Any, claim: bytes) -> CaseOutcome:
    return verdict(FunctionCase("f", [], expected), Ran(0, 0.1, 0.1, claim=claim)).outcome


def _printed(expected: str, stdout: bytes) -> CaseOutcome:
    return verdict(StdioCase("", expected), Ran(0, 0.1, 0.1, stdout=stdout)).outcome


@settings(max_examples=40)
@given(_JSON)
def test_a_value_equals_itself_and_nothing_that_wraps_it(value: Any) -> None:
    assert _returned(value, json.dumps(value).encode()) is CaseOutcome.PASSED
    assert _returned(value, json.dumps([value]).encode()) is CaseOutcome.FAILED
    assert _returned(value, json.dumps({"value": value}).encode()) is CaseOutcome.FAILED


@pytest.mark.parametrize(
    ("expected", "claim", "right"),
    [
        (1, b"1.0", True),
        (987654321, b"987654000.0", False),
        (987654321, b"987654321.0", True),
        (3, b"3.0000001", False),
        (2**53 + 1, b"9007199254740992.0", False),
        ([1, 2], b"[1, 2.0000001]", False),
        (3.0, b"3", True),
        (1e-10, b"0.0", False),
        (1e-10, b"0", False),
        (0.0, b"1e-17", True),
        (0.0, b"1e-6", False),
        (-1e-10, b"1e-10", False),
        (1e-10, b"1.0000001e-10", True),
        (0.1, b"0.10000000001", True),
        (0.1, b"0.1001", False),
        (True, b"1", False),
        (1, b"true", False),
        (0, b"null", False),
        (None, b"false", False),
        ("1", b"1", False),
        ((1, 2), b"[1, 2]", True),
        ([], b"{}", False),
        (1e300, b"1" + b"0" * 400, False),
        (1, b"1 1", False),
        (1, b"", False),
        (1.0, b"NaN", False),
        (1.0, b"Infinity", False),
        ({"a": 1}, b'{"a": 1, "b": 2}', False),
    ],
)
def test_values_are_compared_by_kind(expected: Any, claim: bytes, right: bool) -> None:
    assert _returned(expected, claim) is (CaseOutcome.PASSED if right else CaseOutcome.FAILED)


@pytest.mark.parametrize(
    ("stdout", "right"),
    [
        (b"1 2\n3", True),
        (b"1 2  \n3\n\n\n", True),
        (b"1 2\r\n3\r\n", True),
        (b"1 2 3", False),
        (b" 1 2\n3", False),
        (b"1 2\n\n3", False),
        (b"1 2\n3\n4", False),
        (b"", False),
        (b"1 2\n3\xff", False),
    ],
)
def test_output_is_compared_but_for_trailing_space(stdout: bytes, right: bool) -> None:
    assert _printed("1 2\n3\n", stdout) is (CaseOutcome.PASSED if right else CaseOutcome.FAILED)


@given(st.integers(min_value=-64, max_value=255).filter(bool), st.booleans(), st.booleans())
def test_only_a_run_that_ended_well_can_pass(status: int, timed_out: bool, over: bool) -> None:
    ran = Ran(status, 0.1, 0.1, stdout=b"1", claim=b"1", timed_out=timed_out, output_exhausted=over)
    for case in (StdioCase("", "1"), FunctionCase("f", [], 1)):
        assert verdict(case, ran).outcome not in (CaseOutcome.PASSED, CaseOutcome.FAILED)


@given(_JSON, st.text())
def test_the_program_is_not_shown_what_is_expected(arguments: Any, text: str) -> None:
    one, other = (FunctionCase("f", [arguments], expected) for expected in (text, "another"))
    assert one.shown == other.shown
    assert StdioCase("in", "a").shown == StdioCase("in", "b").shown


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (3, "row 7: a test case must be an object, not int"),
        (
            {},
            "row 7: a test case has the fields stdin and stdout, or entry, arguments and expected, or entry and test, "
            "not []",
        ),
        ({"stdin": ""}, "row 7: a test case has the fields"),
        ({"stdin": "", "stdout": "", "entry": "f"}, "row 7: a test case has the fields"),
        ({"stdin": 1, "stdout": ""}, "row 7: stdin: must be a string, not int"),
        ({"stdin": "", "stdout": None}, "row 7: stdout: must be a string, not NoneType"),
        ({"stdin": "\ud800", "stdout": ""}, "row 7: stdin: must be encodable as UTF-8"),
        ({"entry": "a b", "arguments": [], "expected": 1}, "row 7: entry: must be the name of a function"),
        ({"entry": "a.b.c", "arguments": [], "expected": 1}, "row 7: entry: must be the name of a function"),
        ({"entry": "f", "arguments": {}, "expected": 1}, "row 7: arguments: must be a list, not dict"),
        ({"entry": "f", "arguments": [{1}], "expected": 1}, "row 7: arguments: must be JSON"),
        ({"entry": "f", "arguments": [], "expected": {1}}, "row 7: expected: must be JSON"),
    ],
)
def test_a_malformed_case_is_refused_with_row_and_field(raw: object, message: str) -> None:
    with pytest.raises(ValueError, match="row 7") as caught:
        parse_case(raw, "row 7")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"stdin": "", "stdout": "\u00e9" * (MAX_EXPECTED_BYTES // 2 + 1)}, "stdout"),
        ({"entry": "f", "arguments": [], "expected": "x" * MAX_EXPECTED_BYTES}, "expected"),
        ({"entry": "f", "test": f"assert f() == '\u00e9' * {MAX_EXPECTED_BYTES // 6 + 1}"}, "test"),
    ],
    ids=["stdout", "expected", "test"],
)
def test_a_case_that_expects_more_than_a_program_may_answer_is_refused(raw: object, field: str) -> None:
    limit = r"must expect an output of 8,388,608 bytes or less, not 8,388,6\d\d; remove the test case"
    with pytest.raises(ValueError, match=rf"^row 7: {field}: {limit}$"):
        parse_case(raw, "row 7")


def test_the_largest_answer_may_be_expected() -> None:
    assert parse_case({"stdin": "", "stdout": "x" * MAX_EXPECTED_BYTES}, "row 7").expected_bytes == MAX_EXPECTED_BYTES


def test_well_formed_cases_are_read() -> None:
    assert parse_case({"stdin": "1", "stdout": "2"}, "row 0") == StdioCase("1", "2")
    raw = {"entry": "Solution.f", "arguments": [1], "expected": None}
    assert parse_case(raw, "row 0") == FunctionCase("Solution.f", [1], None)
