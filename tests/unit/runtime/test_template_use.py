"""A prompt template or an argument of the chat template that would have no effect is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from longshore.api.model import Data
from longshore_runtime.data.dataset import prompt_sets
from longshore_runtime.data.reading import Row
from longshore_runtime.errors import UserError
from tests.unit.runtime.test_dataset import Letters, data, prompts, write


def conversations(tmp_path: Path, *contents: Any) -> Path:
    return write(tmp_path, *(json.dumps({"prompt": content, "answer": ""}) for content in contents))


ASKED: dict[str, str] = {"role": "user", "content": "hi"}


def test_a_template_of_prompts_that_are_all_messages_is_refused(tmp_path: Path) -> None:
    solve = data(prompt_template="Solve: {prompt}", held_out_prompts=0)
    with pytest.raises(UserError, match=r"^data\.promptTemplate: no prompt is put into it, because all are lists of"):
        prompts(conversations(tmp_path, [ASKED], [ASKED]), solve)
    mixed_rows = prompts(conversations(tmp_path, [ASKED], "hi"), solve)
    assert [one.prompt for one in mixed_rows.train] == ["hi>", "Solve: hi"]
    assert prompts(conversations(tmp_path, [ASKED]), data(held_out_prompts=0)).train


@pytest.mark.parametrize(
    ("templates", "field"),
    [
        ({"promptTemplate": "Solve: {prompt}"}, None),
        ({"sources": ("Own: {prompt}", None)}, r"data\.sources\[chats\]"),
        ({"promptTemplate": "Solve: {prompt}", "sources": (None, "Own: {prompt}")}, "data"),
    ],
    ids=["texts of another source inherit it", "of its source", "no source with texts inherits it"],
)
def test_a_template_that_sources_inherit_needs_texts_in_one_of_them(
    templates: dict[str, Any], field: str | None
) -> None:
    own = templates.pop("sources", (None, None))
    sources = [
        {"name": name, "path": name} | ({"promptTemplate": template} if template else {})
        for name, template in zip(("chats", "texts"), own, strict=True)
    ]
    settings = Data.model_validate({"sources": sources, "heldOutPrompts": 0, **templates})
    both: list[Any] = [[ASKED], "hi"]
    rows = [
        Row("", {"prompt": prompt, "answer": ""}, source) for prompt, source in zip(both, settings.each, strict=True)
    ]
    if field is None:
        assert prompt_sets(rows, settings, Letters(), 100).train[1].prompt == "Solve: hi"
    else:
        with pytest.raises(UserError, match=rf"^{field}\.promptTemplate: no prompt is put into it"):
            prompt_sets(rows, settings, Letters(), 100)


class Templated(Letters):
    """Has chat templates of its own."""

    def __init__(self, chat_template: Any) -> None:
        self.chat_template = chat_template


THINKING = "{% if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}{{ enable_thinking }}"


@pytest.mark.parametrize("template", [None, THINKING])
@pytest.mark.parametrize(("name", "fix"), [("enable_thinkng", "write 'enable_thinking'"), ("reasoning", "remove it")])
def test_an_argument_that_the_template_never_reads_is_refused(
    template: str | None, name: str, fix: str, tmp_path: Path
) -> None:
    chat = {"templateArguments": {"enable_thinking": True, name: False}, "template": template}
    tokenizer = Templated(THINKING if template is None else None)
    with pytest.raises(
        UserError, match=rf"^data\.chat\.templateArguments: the chat template never reads '{name}'; {fix}$"
    ):
        prompts(conversations(tmp_path, "hi"), data(chat=chat), tokenizer=tokenizer)


@pytest.mark.parametrize(
    "template",
    [
        pytest.param({"default": "{{ x }}", "tool_use": "{{ y }}"}, id="several"),
        pytest.param("{% unknown_tag %}", id="unreadable"),
        pytest.param(
            "{% for one in z %}{% break %}{% endfor %}{% generation %}{{ mode }}{% endgeneration %}", id="tags"
        ),
        pytest.param("{% macro turn(one) %}{{ one|tojson }}{{ mode }}{% endmacro %}{{ turn(z) }}", id="in a macro"),
        pytest.param("{% set mode = mode|default('fast') %}{{ mode }}", id="with a default"),
    ],
)
def test_an_argument_that_a_template_may_read_is_given_to_it(template: Any, tmp_path: Path) -> None:
    settings = data(chat={"templateArguments": {"mode": "slow"}}, held_out_prompts=0)
    assert prompts(conversations(tmp_path, "hi"), settings, tokenizer=Templated(template)).train
