"""What code of users raises and returns is described, whatever it is."""

import json
from collections.abc import Callable

import orjson
import pytest

from longshore_runtime.rewards.failure_text import error_text, error_with_place, shortened


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def caught(raises: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as info:
        raises()
    return info.value


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("label"), "KeyError: 'label'"),
        (ValueError("one\n  two"), "ValueError: one two"),
        (MemoryError(), "MemoryError"),
        (SystemExit(0), "SystemExit: 0"),
        (ValueError(json.loads('"\\ud83d"')), "ValueError: \\ud83d"),
        (Silent(), "Silent: <its text cannot be shown: str() raises RuntimeError>"),
        (ExceptionGroup("a", [KeyError("b")]), "ExceptionGroup: a (1 sub-exception); the first: KeyError: 'b'"),
    ],
)
def test_exception_is_one_line_that_can_be_encoded(error: BaseException, text: str) -> None:
    assert error_text(error) == text
    orjson.dumps(text)


def test_long_exception_keeps_its_beginning_and_its_end() -> None:
    text = error_text(ValueError("a" * 1_000_000 + "z"))
    assert len(text) < 400
    assert text.startswith("ValueError: aaa") and "az (1,000,001 characters)" in text


def test_place_is_that_of_the_users_code_not_of_a_library() -> None:
    described = error_with_place(caught(lambda: json.loads("{")))
    assert "JSONDecodeError: Expecting property name" in described
    assert "test_failure_text.py:49 in <lambda>: " in described.rpartition(" > ")[2]
    assert "decoder.py" not in described


def test_shortened_text_says_how_long_it_was() -> None:
    assert shortened("x" * 90, 90) == "x" * 90
    assert shortened("abc" * 40, 9) == "abcabc … abc (120 characters)"
