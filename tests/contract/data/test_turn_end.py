"""The turn of the assistant ends where the chat template of a real tokenizer ends it."""

from typing import Any

import pytest

from longshore.api.model import Chat
from longshore_runtime.backends.tiny_model import build_tokenizer
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.data.turn_end import turn_end, turn_ends

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]\n{{ m['content'] }}{{ eos_token }}{% endfor %}"
PLAIN = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
ONE_TURN = (
    "{% if messages | length > 1 %}{{ raise_exception('one message only') }}{% endif %}{{ messages[0]['content'] }}"
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A tokenizer whose end token is not that of its template, as of base models."""
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.add_tokens(["\nwords:"])
    tokenizer.chat_template = CHATML
    return tokenizer


@pytest.mark.parametrize(
    ("chat", "end"),
    [
        (None, "<|im_end|>"),
        (Chat(system_prompt="Be brief."), "<|im_end|>"),
        (Chat(template=LLAMA), "<eos>"),
        (Chat(template=PLAIN), None),
        (Chat(template=ONE_TURN), None),
        (Chat(template="{{ messages[0]['content'] }}"), None),
    ],
    ids=["of the tokenizer", "with a system prompt", "end token", "no special token", "one turn", "no answer"],
)
def test_a_turn_ends_with_the_special_token_after_the_answer(
    tokenizer: Any, chat: Chat | None, end: str | None
) -> None:
    token = turn_end(chat, tokenizer)
    assert token == (None if end is None else tokenizer.convert_tokens_to_ids(end))


def test_a_tokenizer_without_a_template_has_no_turns() -> None:
    assert turn_end(None, build_tokenizer()) is None


def test_only_responses_to_conversations_end_with_a_turn(tokenizer: Any) -> None:
    text = PromptRecord(0, "1 + 1 =", (5, 6), "2")
    talk = PromptRecord(1, "1 + 1", (5, 6), "2", messages=({"role": "user", "content": "1 + 1"},))
    assert turn_ends([text], None, tokenizer) == ()
    assert turn_ends([text, talk], None, tokenizer) == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    assert turn_ends([talk], Chat(template=PLAIN), tokenizer) == ()
