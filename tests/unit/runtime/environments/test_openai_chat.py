"""What clients of OpenAI's APIs send is read as they mean it, and what cannot be served is refused."""

import json
from typing import Any

import pytest

from longshore_runtime.environments.openai_chat import BadRequest, read_chat, read_responses

USER = {"role": "user", "content": "2+3?"}


def calls(arguments: object) -> dict[str, Any]:
    function = {"name": "add", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": function}]}


def test_a_call_its_result_in_parts_and_null_fields_are_read() -> None:
    result = {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "5"}]}
    nothing = dict.fromkeys(("tools", "tool_choice", "functions", "function_call", "stop", "n", "max_tokens"))
    request = read_chat({"messages": [USER, calls('{"a": 2}'), result], "max_completion_tokens": 7, **nothing})
    assert [(one.role, one.content, one.name) for one in request.messages] == [
        ("user", "2+3?", None),
        ("assistant", "", None),
        ("tool", "5", "add"),
    ]
    assert request.messages[1].calls[0].arguments == {"a": 2} and request.max_tokens == 7


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": ["text"], "text": "x"}]}]}, "content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]}, "content"),
        ({"messages": [USER, calls("[" * 100_000), USER]}, "tool_calls"),
        ({"messages": [USER], "tools": [{"type": "function", "function": {"name": "f", "parameters": "f"}}]}, "tools"),
        ({"messages": [USER], "functions": [{"name": "add"}]}, "functions"),
        ({"messages": [USER, {**USER, "role": "assistant", "function_call": {"name": "add"}}, USER]}, "function_call"),
    ],
)
def test_a_chat_that_cannot_be_read_is_refused_with_its_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest, match=rf"^{field}: "):
        read_chat(json.loads(json.dumps(body)))


def test_an_item_of_a_role_that_is_no_text_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"^input: "):
        read_responses({"input": [{"role": ["user"], "content": "x"}]})
