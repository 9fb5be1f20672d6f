"""Test cases are found however a data set writes them down."""

import json
from typing import Any

import pytest

from longshore_runtime.rewards.kinds.code import case_list, cases_of

STDIO = {"inputs": ["1\n", ["2", "3"]], "outputs": ["2\n", "5\n"]}


@pytest.mark.parametrize(
    ("raw", "cases"),
    [
        ([{"stdin": "", "stdout": "a"}], [{"stdin": "", "stdout": "a"}]),
        (json.dumps([{"stdin": "", "stdout": "a"}]), [{"stdin": "", "stdout": "a"}]),
        (STDIO, [{"stdin": "1\n", "stdout": "2\n"}, {"stdin": "2\n3", "stdout": "5\n"}]),
        (json.dumps(STDIO), [{"stdin": "1\n", "stdout": "2\n"}, {"stdin": "2\n3", "stdout": "5\n"}]),
        ({"inputs": [[1, 2]], "outputs": [[3]], "fn_name": "f"}, [{"entry": "f", "arguments": [1, 2], "expected": 3}]),
        ({"inputs": [["a"], ["b"]], "outputs": [[1, 2], [3]], "fn_name": "f"},
         [{"entry": "f", "arguments": ["a"], "expected": [1, 2]}, {"entry": "f", "arguments": ["b"], "expected": [3]}]),
    ],
)  # fmt: skip
def test_cases_become_a_list(raw: Any, cases: list[Any]) -> None:
    assert case_list({"tests": raw}, "tests", "row 1") == cases
    assert case_list({"reward_model": {"ground_truth": raw}}, "reward_model.ground_truth", "row 1") == cases
    assert len(cases_of({"tests": raw}, "tests", "row 1")) == len(cases)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (None, "^row 1: 'tests' must be a list of test cases; set code.testsField"),
        ("{", "^row 1: 'tests' must be a list of test cases"),
        ([], "^row 1: 'tests' has no test case; add one"),
        ("[]", "^row 1: 'tests' has no test case"),
        ([{"stdin": "", "stdout": ""}, 7], r"^row 1, tests\[1\]: a test case must be an object, not int$"),
        ({"inputs": []}, "^row 1: 'tests' must be a list of test cases"),
        ({"inputs": ["1"], "outputs": []}, "^row 1, tests: inputs and outputs must be lists of the same length"),
        ({"inputs": [1], "outputs": ["1"]}, r"^row 1, tests\[0\]: stdin: must be a string, not int"),
        (
            {"inputs": ["1", "2"], "outputs": ["1", "x" * (9 << 20)]},
            r"^row 1, tests\[1\]: stdout: must expect an output of ",
        ),
    ],
)
def test_what_is_no_test_case_is_reported_with_row_and_field(raw: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cases_of({"tests": raw}, "tests", "row 1")
