"""Programs are worth what their test cases say."""

import pytest

from longshore_runtime.rewards.code import program_of


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
