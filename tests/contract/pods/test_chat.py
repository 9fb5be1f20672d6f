"""Conversations become texts by the chat templates of real tokenizers."""

from typing import Any

import pytest

from longshore.api.model import Chat, Data
from longshore_runtime.backends.tiny_model import build_tokenizer
from longshore_runtime.data.chat import conversation, rendered
from longshore_runtime.data.dataset import prompt_sets
from longshore_runtime.data.reading import Row
from longshore_runtime.data.suitability import turn_remark
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


def remark(tokenizer: Any, prompt: Any, chat: Chat | None) -> str | None:
    """What is said of the template with a prompt of the data."""
    data = Data(path="a.jsonl", held_out_prompts=0, chat=chat)
    rows = [Row("a.jsonl, line 1", {"prompt": prompt, "answer": ""}, data.each[0])]
    return turn_remark(prompt_sets(rows, data, tokenizer, 100), chat, tokenizer)


_TURNS = "{% for one in messages %}<{{ one.role }}>{{ one.content }}{% endfor %}"


def test_a_template_that_does_not_begin_the_answer_gets_a_word_that_says_how(tokenizer: Any) -> None:
    said = remark(tokenizer, MESSAGES, Chat(template=_TURNS))
    assert said is not None
    assert said.startswith("data.chat.template: the chat template ignores add_generation_prompt")
    assert said.endswith("set a template that ends prompts with '<assistant>'")


@pytest.mark.parametrize(
    "template",
    [
        pytest.param(TEMPLATE, id="asked for the turn"),
        pytest.param(f"{_TURNS}<assistant>", id="it always ends with the turn"),
        pytest.param(
            "{% for one in messages %}{% if one.role == 'user' %}[INST] {{ one.content }} [/INST]"
            "{% else %} {{ one.content }}</s>{% endif %}{% endfor %}",
            id="the end of the question begins the answer",
        ),
        pytest.param(
            "{% for one in messages %}{% if one.role == 'user' %}User: {{ one.content }}\nAssistant:"
            "{% else %} {{ one.content }}\n{% endif %}{% endfor %}",
            id="the question ends with the turn",
        ),
        pytest.param("{% for one in messages %}{{ one.content }}\n{% endfor %}", id="nothing tells turns apart"),
        pytest.param("{{ messages[0].content }}", id="answers are left out"),
        pytest.param(
            "{% for one in messages %}{% if one.role != 'user' %}{{ raise_exception('no') }}{% endif %}"
            "<user>{{ one.content }}{% endfor %}",
            id="answers are refused",
        ),
    ],
)
def test_a_template_that_needs_no_beginning_of_the_answer_gets_no_word(tokenizer: Any, template: str) -> None:
    assert remark(tokenizer, MESSAGES, Chat(template=template)) is None


def test_texts_and_the_template_of_the_built_in_model_get_no_word(tokenizer: Any) -> None:
    assert remark(tokenizer, "hi", None) is None
    assert remark(tokenizer, MESSAGES, None) is None
