"""What clients of OpenAI's APIs send is read as they mean it, and what cannot be served is refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from longshore_runtime.environments.openai_chat import (
    BadRequest,
    ModelRequest,
    ModelTurn,
    read_chat,
    read_responses,
    response_events,
)

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


ASKS_NOTHING: dict[str, Any] = {
    "logprobs": False,
    "top_logprobs": 0,
    "logit_bias": {},
    "modalities": ["text"],
    "background": False,
    "prompt": None,
}


@pytest.mark.parametrize("read", [read_chat, read_responses])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logprobs", True),
        ("top_logprobs", 5),
        ("logit_bias", {"5": 100}),
        ("modalities", ["text", "audio"]),
        ("background", True),
        ("prompt", {"id": "stored"}),
        ("web_search_options", {"search_context_size": "low"}),
        ("guided_json", {"type": "object"}),
        ("structured_outputs", {"regex": "a"}),
    ],
)
def test_a_field_that_cannot_be_served_is_refused_by_name(
    read: Callable[[dict[str, Any]], ModelRequest], field: str, value: object
) -> None:
    body = {"messages": [USER], "input": [USER], **ASKS_NOTHING}
    assert read(body).messages[0].content == "2+3?"
    with pytest.raises(BadRequest, match=rf"^{field}: "):
        read(body | {field: value})


def test_an_item_of_a_role_that_is_no_text_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"^input: "):
        read_responses({"input": [{"role": ["user"], "content": "x"}]})


@pytest.mark.parametrize("wanted", [True, False])
def test_a_response_says_whether_a_turn_may_have_several_calls(wanted: bool) -> None:
    events = response_events(ModelTurn(0, "text", (), False, 1, 1), calls_in_parallel=wanted)
    told = [one["response"]["parallel_tool_calls"] for one in events if "response" in one]
    assert told == [wanted, wanted]
