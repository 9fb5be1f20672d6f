"""Programs are worth what their test cases say."""

from typing import Any

import pytest

from longshore_runtime.rewards.code import cases_of, program_of
from longshore_runtime.sandbox.cases import FunctionCase, StdioCase

DOUBLES = [{"stdin": f"{number}\n", "stdout": f"{2 * number}\n"} for number in range(4)]
CALLS = [{"entry": "double", "arguments": [number], "expected": 2 * number} for number in range(4)]


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("print(1)", "print(1)"),
        ("Try this:\n```python\nprint(1)\n```\nDone.", "print(1)\n"),
        ("```\nprint(1)\n```\nor rather\n```py\nprint(2)\n```", "print(2)\n"),
        ('```python title="main.py"\nprint(1)\n```', "print(1)\n"),
        ("```python\r\nprint(1)\r\n```", "print(1)\r\n"),
        ("text ```python\nprint(1)\n``` text", "print(1)\n"),
        ("```python\nprint(1)", "```python\nprint(1)"),
        ("", ""),
    ],
)
def test_the_program_is_the_last_fenced_block_else_the_whole_response(response: str, program: str) -> None:
    assert program_of(response) == program


def test_cases_are_read_from_the_field_that_the_job_names() -> None:
    row = {"checks": [DOUBLES[1], CALLS[2]]}
    assert cases_of(row, "checks", "d, line 1") == [StdioCase("1\n", "2\n"), FunctionCase("double", [2], 4)]


@pytest.mark.parametrize(
    ("tests", "sentence"),
    [
        (None, r"^d, line 3: 'tests' must be a list of test cases; set code.testsField to where they are$"),
        ([], r"^d, line 3: 'tests' must be a list of test cases"),
        ("[]", r"^d, line 3: 'tests' must be a list of test cases"),
        ([DOUBLES[0], 7], r"^d, line 3, tests\[1\]: a test case must be an object, not int$"),
        ([{"stdin": "1"}], r"^d, line 3, tests\[0\]: a test case has the fields stdin and stdout, or entry, "),
        ([{"stdin": 1, "stdout": "2"}], r"^d, line 3, tests\[0\]: stdin: must be a string, not int$"),
        ([{"entry": "f(", "arguments": [], "expected": 1}], r"^d, line 3, tests\[0\]: entry: must be the name of"),
        ([{"entry": "f", "arguments": 1, "expected": 1}], r"^d, line 3, tests\[0\]: arguments: must be a list, not"),
    ],
)
def test_malformed_cases_are_reported_with_row_and_field(tests: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        cases_of({"tests": tests}, "tests", "d, line 3")
