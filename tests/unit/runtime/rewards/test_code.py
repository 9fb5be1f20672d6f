"""Programs are worth what their test cases say."""

import pytest

from longshore_runtime.rewards.kinds.code import program_of


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


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("<think>\n```python\nprint(1)\n```\n</think>\n```python\nprint(2)\n```", "print(2)\n"),
        ("<think>\n```python\nprint(1)\nNo.\n</think>\n```python\nprint(2)\n```", "print(2)\n"),
        ("<think>\n```python\nprint(1)\n```\n</think>\nThat is it.", "print(1)\n"),
        ("Let me see.</think>print(2)", "print(2)"),
    ],
)
def test_the_program_is_looked_for_after_the_thinking_first(response: str, program: str) -> None:
    assert program_of(response) == program


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("1. Add:\n   ```python\n   if 1:\n\n     print(1)\n   ```\n2. Run it.", "if 1:\n\n  print(1)\n"),
        ("- Add:\n\t```python\n\tprint(1)\n\t```", "print(1)\n"),
        ("1. ```python\n   print(1)\n   ```\n2. ```python\n   print(2)\n   ```", "print(2)\n"),
        ("1. Add:\n   ```python\n   print(1)\n```\n", "print(1)\n"),
        ("1. Add:\n\n    ```python\n    s = '''a\n   \n    '''\n    ```", "s = '''a\n   \n'''\n"),
    ],
)
def test_a_block_within_a_list_loses_the_indentation_of_the_list(response: str, program: str) -> None:
    assert program_of(response) == program


@pytest.mark.parametrize(
    "response",
    [
        "Put it between ```python``` and ```.\n```python\nprint(1)\n```",
        "```python``` starts it:\n```python\nprint(1)\n```\nSo ends ```python```.",
        "With `x` and ```y```: ```python\nprint(1)\n```",
        "Put it behind ``` as follows.\n```python\nprint(1)\n```",
        "```python\nprint(2)\nNo, rather:\n```python\nprint(1)\n```",
        "```python\nprint(1)\n```\nor\n```python\nprint(2",
        "````python\nprint(1)\n````",
    ],
)
def test_a_block_lasts_from_an_opening_fence_to_its_own_end(response: str) -> None:
    assert program_of(response) == "print(1)\n"


def test_fences_in_the_text_of_a_program_do_not_end_it() -> None:
    program = 'def f():\n    """Return one.\n\n    ```\n    f()\n    ```\n    """\n    return 1\n'
    assert program_of(f"Here:\n```python\n{program}```\n") == program


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("```python\nprint(1)```", "print(1)"),
        ("```python\nprint(1)\n  ```", "print(1)\n  "),
        ("```python\nprint(1)``` or\n```python\nprint(2)```", "print(2)"),
        ("```\n```", ""),
    ],
)
def test_a_block_without_a_fence_of_its_own_at_its_end_lasts_to_the_next_one(response: str, program: str) -> None:
    assert program_of(response) == program


@pytest.mark.parametrize(
    "response",
    [
        "```python\nprint(1)\n```This prints one.",
        "```python\nprint(1)\n```output\n1\n```",
        "```\nprint(1)\n```python",
    ],
)
def test_a_block_that_does_not_end_well_is_still_found(response: str) -> None:
    assert program_of(response).strip() == "print(1)"
