"""Rows to imitate: what is learned of them, which steps take them, and what is wrong with others."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.api.model import Chat
from longshore.api.warm_start import WarmStartData
from longshore_runtime.data.reading import Row
from longshore_runtime.data.supervised import Exchange, exchanges, shuffled
from longshore_runtime.errors import UserError

END = "$"


class Letters:
    """One token per character; `$` ends turns, and `~` texts."""

    eos_token_id = ord("~")
    chat_template = "any"
    added_tokens_decoder: Mapping[int, Any] = {ord(END): type("Token", (), {"special": True})()}

    def encode(self, text: str, /, **options: Any) -> list[int]:
        return [ord(letter) for letter in text]

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], /, **options: Any) -> str:
        turns = "".join(f"{one['role'][0]}:{one['content']}{END}\n" for one in messages)
        return turns + ("a:" if options["add_generation_prompt"] else "")


class Thinks(Letters):
    """Begins turns with what it leaves out of answers."""

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], /, **options: Any) -> str:
        text = super().apply_chat_template(messages, **options)
        return text + "<think>" if options["add_generation_prompt"] else text


def imitated(
    fields: Mapping[str, Any], chat: Chat | None = None, tokenizer: Any = None, **data: Any
) -> tuple[str, str]:
    """Return the text of a row before what is learned, and what is learned."""
    settings = WarmStartData(path="rows.jsonl", **data)
    rows = [Row("rows.jsonl, line 1", fields, settings.source)]
    ((one,), _) = exchanges(rows, settings, chat, tokenizer or Letters(), 100)
    assert one.trajectory.mask.all()
    return "".join(map(chr, one.prompt_tokens)), "".join(map(chr, one.trajectory.tokens))


CONVERSATION = [
    {"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "3"},
    {"role": "user", "content": "really?"}, {"role": "assistant", "content": "2"},
]  # fmt: skip


def test_the_last_message_of_a_conversation_is_learned_with_the_end_of_its_turn() -> None:
    before = "u:1 + 1$\na:3$\nu:really?$\na:"
    assert imitated({"messages": CONVERSATION}) == (before, "2$")
    assert imitated({"chat": CONVERSATION[:-1], "out": "2"}, prompt_field="chat", response_field="out") == (
        before,
        "2$",
    )


def test_a_text_is_learned_with_the_end_of_texts_and_after_its_template() -> None:
    fields = {"question": "1 + 1", "answer": "2"}
    names = {"prompt_field": "question", "response_field": "answer"}
    assert imitated(fields, **names) == ("1 + 1", "2~")
    assert imitated({"question": "1 + 1", "answer": "2~ and more~"}, **names) == ("1 + 1", "2~"), "nothing goes on"
    assert imitated(fields, prompt_template="Q: {prompt} A: ", **names) == ("Q: 1 + 1 A: ", "2~")
    assert imitated(fields, Chat(system_prompt="Add."), **names) == ("s:Add.$\nu:1 + 1$\na:", "2$")


@pytest.mark.parametrize(
    ("fields", "data", "sentence"),
    [
        ({"text": "a"}, {}, "line 1: no field 'messages' (it has 'text'); set algorithm.warmStart.data.promptField"),
        ({"messages": "a"}, {}, "'messages' is no list of messages, so it does not hold the response; set "),
        ({"messages": CONVERSATION[:3]}, {}, "'messages': the last message is no text of the assistant to imitate"),
        ({"messages": CONVERSATION[1:2]}, {}, "'messages' has no message before the response"),
        ({"messages": CONVERSATION, "out": " "}, {"response_field": "out"}, "'out' must be a text with the response"),
        ({"messages": CONVERSATION, "out": "a"}, {"response_field": "out"}, "the last message is from the assistant"),
    ],
)
def test_a_row_without_a_response_is_refused_with_its_line(
    fields: Mapping[str, Any], data: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError) as refused:
        imitated(fields, **data)
    assert sentence in str(refused.value)


def test_a_template_that_begins_turns_otherwise_than_it_writes_them_is_refused() -> None:
    with pytest.raises(UserError, match=r"line 1: the chat template begins .*templateArguments"):
        imitated({"messages": CONVERSATION}, tokenizer=Thinks())


def test_a_row_with_a_token_that_the_model_does_not_know_is_refused() -> None:
    data = WarmStartData(path="rows.jsonl", prompt_field="q", response_field="a")
    rows = [Row("rows.jsonl, line 7", {"q": "q", "a": "a"}, data.source)]
    assert exchanges(rows, data, None, Letters(), 10, ord("~") + 1)[1] == 0
    with pytest.raises(UserError, match=r"^model\.path: the tokenizer gives rows\.jsonl, line 7 token 126, and"):
        exchanges(rows, data, None, Letters(), 10, ord("~"))


def test_long_rows_are_left_out_and_counted_and_others_must_remain() -> None:
    data = WarmStartData(path="rows.jsonl", prompt_field="q", response_field="a")
    rows = [Row("row", {"q": "q" * length, "a": "a"}, data.source) for length in (1, 8, 9)]
    found, num_too_long = exchanges(rows, data, None, Letters(), 10)
    assert ([one.num_tokens for one in found], num_too_long) == ([3, 10], 1)
    with pytest.raises(UserError, match=r"none of the 3 rows has at most 2 tokens.*maxContextTokens"):
        exchanges(rows, data, None, Letters(), 2)


@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 6))
def test_every_row_comes_once_before_any_comes_again(num_rows: int, rows_per_step: int, num_steps: int) -> None:
    rows = [Exchange.of([number], [([1], True)]) for number in range(num_rows)]
    of_step = shuffled(rows, rows_per_step, seed=3)
    taken = [int(one.prompt_tokens[0]) for step in range(1, num_steps + 1) for one in of_step(step)]
    assert len(taken) == num_steps * rows_per_step
    for first in range(0, len(taken), num_rows):
        assert max(Counter(taken[first : first + num_rows]).values()) == 1
    again = shuffled(rows, rows_per_step, seed=3)(num_steps)
    assert [int(one.prompt_tokens[0]) for one in again] == taken[-rows_per_step:], "also where a job goes on"
