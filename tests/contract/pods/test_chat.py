"""Conversations become texts by the chat templates of real tokenizers."""

from typing import Any

import pytest

from longshore.api.model import Chat
from longshore_runtime.backends.tiny_model import build_tokenizer
from longshore_runtime.data.chat import conversation, rendered
from longshore_runtime.errors import UserError

MESSAGES = [{"role": "user", "content": "hi"}]
TEMPLATE = (
    "{% for one in messages %}<{{ one.role }}>{{ one.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if not enable_thinking %}<think></think>{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer()


def test_without_settings_the_template_of_the_tokenizer_is_used(tokenizer: Any) -> None:
    assert rendered(MESSAGES, None, tokenizer, "row 1") == "hi"


def test_a_template_and_its_arguments_are_the_users(tokenizer: Any) -> None:
    chat = Chat(system_prompt="Be brief.", template=TEMPLATE, template_arguments={"enable_thinking": False})
    text = rendered(conversation("hi", chat), chat, tokenizer, "row 1")
    assert text == "<system>Be brief.<user>hi<assistant><think></think>"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('no system message') }}", "no system message"),
        ("{% if %}", "Expected an expression"),
        ("{{ messages[9].content.x }}", "has no element 9"),
    ],
)
def test_a_template_that_does_not_take_the_messages_is_reported_with_the_row(
    tokenizer: Any, template: str, reason: str
) -> None:
    reported = rf"^row 1: data\.chat\.template does not take its messages \(.*{reason}"
    with pytest.raises(UserError, match=reported):
        rendered(MESSAGES, Chat(template=template), tokenizer, "row 1")
