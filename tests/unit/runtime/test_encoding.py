"""Special tokens of prompts: those that begin a text, once, and none that end one."""

from typing import Any

import pytest

from longshore_runtime.data.encoding import prompt_encoding
from longshore_runtime.errors import UserError

BEGIN, END = "^", "$"


class Special:
    """One token per character; `^` and `$` stand for the special tokens."""

    def __init__(self, before: str = "", after: str = "") -> None:
        self.before, self.after = before, after

    def encode(self, text: str, /, *, add_special_tokens: bool = True, **options: Any) -> list[int]:
        return [ord(one) for one in (f"{self.before}{text}{self.after}" if add_special_tokens else text)]


def plain(tokenizer: Special, text: str) -> str:
    return "".join(map(chr, prompt_encoding(tokenizer).plain(text)))


@pytest.mark.parametrize("after", ["", END])
@pytest.mark.parametrize("before", ["", BEGIN, BEGIN + "#"])
def test_a_text_gets_the_special_tokens_that_begin_it_and_none_that_end_it(before: str, after: str) -> None:
    assert plain(Special(before, after), "1+1=") == f"{before}1+1="


@pytest.mark.parametrize("before", [BEGIN, BEGIN + "#", "#" + BEGIN])
def test_a_text_that_has_its_special_tokens_already_gets_no_more_of_them(before: str) -> None:
    assert plain(Special(before, END), "^1+1=") == "^1+1="


def test_special_tokens_inside_a_text_and_those_that_its_author_ends_it_with_stay() -> None:
    assert plain(Special(BEGIN, END), "1^1$") == "^1^1$"


def test_a_text_of_a_chat_template_gets_no_special_tokens() -> None:
    assert prompt_encoding(Special(BEGIN, END)).rendered("1+1=") == tuple(map(ord, "1+1="))


def test_an_empty_text_is_the_beginning_alone() -> None:
    assert plain(Special(BEGIN, END), "") == BEGIN


class Between(Special):
    """Puts special tokens between those of the text."""

    def encode(self, text: str, /, *, add_special_tokens: bool = True, **options: Any) -> list[int]:
        return [ord(one) for one in ("^".join(text) if add_special_tokens else text)]


def test_special_tokens_amid_a_text_are_refused() -> None:
    with pytest.raises(UserError, match=r"^model\.path: the special tokens of the tokenizer stand neither before"):
        prompt_encoding(Between())
