"""Read what an agent asks over OpenAI's chat completions or responses, and write what the model says.

Nothing here knows of HTTP or of episodes. What only an engine that bends its sampling could do is refused: the policy
is trained on what it samples freely. Settings of the sampling itself, such as `temperature`, are those of the job.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from longshore_runtime.environments.pod_protocol import AskedMessage, ToolCall

MODEL: Final = "policy"
"""Name of the only model, whichever one an agent asks."""
_ROLES: Final = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_TEXT_TYPES: Final = frozenset({"text", "input_text", "output_text", "refusal"})

_GUIDES: Final = ("choice", "grammar", "json", "regex")
"""Formats that vLLM can force."""
_NO_LOG_PROBS: Final = "log-probabilities are not told to agents; leave it out"
_REFUSED: Final = {
    "audio": "the model writes text only; leave it out",
    "background": "the answer comes with the response; leave it out",
    "functions": "this field is not read any more; use tools",
    "logit_bias": "the model writes freely; leave it out",
    "logprobs": _NO_LOG_PROBS,
    "prompt": "no prompts are stored here; send the conversation itself",
    "structured_outputs": "the model writes freely; ask for the format in a message",
    "top_logprobs": _NO_LOG_PROBS,
    "web_search_options": "the model cannot search; give it a tool that does",
    **{f"guided_{kind}": "the model writes freely; ask for the format in a message" for kind in _GUIDES},
}
"""What to do instead of a field that cannot be served; one that is empty, false or zero asks for nothing."""

Json = Mapping[str, Any]


class BadRequest(Exception):
    """Raised for a request that cannot be served; the message is one sentence."""


@dataclass(frozen=True)
class ModelRequest:
    """What an agent asks the model."""

    messages: tuple[AskedMessage, ...]
    tools: tuple[dict[str, Any], ...]
    max_tokens: int | None
    stop: tuple[str, ...]
    is_streamed: bool
    wants_usage: bool
    calls_in_parallel: bool = True
    """Whether a turn may have several calls; otherwise its first one is answered."""


@dataclass(frozen=True)
class ModelTurn:
    """What the model said."""

    number: int
    """Number of the turn in its episode."""
    content: str
    calls: tuple[ToolCall, ...]
    is_cut: bool
    num_prompt_tokens: int
    num_tokens: int

    def call_id(self, index: int) -> str:
        """Return the id of a call, by which its result names it."""
        return f"call_{self.number}_{index}"


def read_chat(body: Json) -> ModelRequest:
    """Read a body of `/v1/chat/completions`; raises BadRequest."""
    _refuse_constraints(body)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages: a list of messages is required")
    names: dict[str, str] = {}
    read = tuple(_chat_message(one, names) for one in messages)
    options = body.get("stream_options")
    return ModelRequest(
        messages=_asked(read),
        tools=_tools(body, lambda tool: tool.get("function")),
        max_tokens=_max_tokens(body, "max_completion_tokens", "max_tokens"),
        stop=_stop(body.get("stop")),
        is_streamed=body.get("stream") is True,
        wants_usage=isinstance(options, dict) and options.get("include_usage") is True,
        calls_in_parallel=body.get("parallel_tool_calls") is not False,
    )


def read_responses(body: Json) -> ModelRequest:
    """Read a body of `/v1/responses`, whose conversation is in `input`; raises BadRequest."""
    _refuse_constraints(body)
    if body.get("previous_response_id") or body.get("conversation"):
        raise BadRequest("previous_response_id: nothing is stored here; send the whole conversation as input")
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        raise BadRequest("input: a text or a list of items is required")
    messages = [] if not body.get("instructions") else [AskedMessage("system", _text(body["instructions"]))]
    names: dict[str, str] = {}
    for item in items:
        _add_item(messages, item, names)
    return ModelRequest(
        messages=_asked(tuple(messages)),
        tools=_tools(body, lambda tool: tool),
        max_tokens=_max_tokens(body, "max_output_tokens"),
        stop=(),
        is_streamed=body.get("stream") is True,
        wants_usage=True,
        calls_in_parallel=body.get("parallel_tool_calls") is not False,
    )


def chat_completion(turn: ModelTurn) -> dict[str, Any]:
    """Write the answer of `/v1/chat/completions`."""
    message: dict[str, Any] = {"role": "assistant", "content": _content(turn), "refusal": None}
    if turn.calls:
        message["tool_calls"] = _chat_calls(turn)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(turn)}
    return {**_chat_head(turn, "chat.completion"), "choices": [choice], "usage": _chat_usage(turn)}


def chat_chunks(turn: ModelTurn, *, wants_usage: bool) -> Iterator[dict[str, Any]]:
    """Write the same as the chunks of a stream."""
    head = _chat_head(turn, "chat.completion.chunk")

    def chunk(delta: Json, finish_reason: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]}

    yield chunk({"role": "assistant", "content": _content(turn)})
    if turn.calls:
        yield chunk({"tool_calls": [{"index": index, **call} for index, call in enumerate(_chat_calls(turn))]})
    yield chunk({}, _finish_reason(turn))
    if wants_usage:
        yield {**head, "choices": [], "usage": _chat_usage(turn)}


def response(turn: ModelTurn, *, calls_in_parallel: bool) -> dict[str, Any]:
    """Write the answer of `/v1/responses`; `calls_in_parallel`: see `ModelRequest`."""
    output: list[dict[str, Any]] = []
    if turn.content or not turn.calls:
        text = {"type": "output_text", "text": turn.content, "annotations": [], "logprobs": []}
        output.append(
            {
                "type": "message",
                "id": f"msg_{turn.number}",
                "role": "assistant",
                "status": "completed",
                "content": [text],
            }
        )
    output += [
        {
            "type": "function_call",
            "id": f"fc_{turn.number}_{index}",
            "call_id": turn.call_id(index),
            "name": call.name,
            "arguments": json.dumps(call.arguments),
            "status": "completed",
        }
        for index, call in enumerate(turn.calls)
    ]
    usage = {
        "input_tokens": turn.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": turn.num_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": turn.num_prompt_tokens + turn.num_tokens,
    }
    return {
        "id": f"resp_{turn.number}",
        "object": "response",
        "created_at": int(time.time()),
        "model": MODEL,
        "status": "incomplete" if turn.is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if turn.is_cut else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "output": output,
        "parallel_tool_calls": calls_in_parallel,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": usage,
    }


def response_events(turn: ModelTurn, *, calls_in_parallel: bool) -> Iterator[dict[str, Any]]:
    """Write the same as the events of a stream, with each item of the output whole."""
    whole = response(turn, calls_in_parallel=calls_in_parallel)
    begun = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(whole["output"]):
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        if item["type"] == "message":
            place = {"item_id": item["id"], "output_index": index, "content_index": 0}
            text = item["content"][0]["text"]
            events.append({"type": "response.output_text.delta", **place, "delta": text, "logprobs": []})
            events.append({"type": "response.output_text.done", **place, "text": text, "logprobs": []})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.incomplete" if turn.is_cut else "response.completed", "response": whole})
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def models() -> dict[str, Any]:
    """Write the answer of `/v1/models`."""
    return {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "longshore"}]}


def _refuse_constraints(body: Json) -> None:
    if body.get("n", 1) not in (1, None):
        raise BadRequest("n: the model answers once; ask again for another answer")
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise BadRequest("tool_choice: the model chooses freely; set it to auto or none")
    chat_format, of_text = body.get("response_format"), body.get("text")
    wanted = chat_format if chat_format is not None else of_text.get("format") if isinstance(of_text, dict) else None
    if isinstance(wanted, dict) and wanted.get("type", "text") != "text":
        raise BadRequest("response_format: the model writes freely; ask for the format in a message")
    if body.get("modalities") not in (None, [], ["text"]):
        raise BadRequest("modalities: the model writes text only; leave it out")
    for field, advice in _REFUSED.items():
        if body.get(field):
            raise BadRequest(f"{field}: {advice}")


def _tools(body: Json, function_of: Any) -> tuple[dict[str, Any], ...]:
    tools = body.get("tools") or []
    if body.get("tool_choice") == "none":
        return ()
    if not isinstance(tools, list):
        raise BadRequest("tools: a list is required")
    read = []
    for tool in tools:
        function = function_of(tool) if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRequest("tools: only functions with a name can be called here")
        known = {"name": function["name"], "description": function.get("description") or ""}
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        if not isinstance(parameters, dict):
            raise BadRequest(f"tools: the parameters of {function['name']} must be an object")
        read.append({"type": "function", "function": {**known, "parameters": parameters}})
    return tuple(read)


def _max_tokens(body: Json, *fields: str) -> int | None:
    number = next((body[field] for field in fields if body.get(field) is not None), None)
    if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
        raise BadRequest(f"{fields[0]}: a number of 1 or more is required")
    return number


def _stop(stop: object) -> tuple[str, ...]:
    texts = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(texts, list) or not all(isinstance(one, str) and one for one in texts):
        raise BadRequest("stop: a text or a list of texts is required")
    return tuple(texts)


def _asked(messages: Sequence[AskedMessage]) -> tuple[AskedMessage, ...]:
    if messages[-1].role == "assistant":
        raise BadRequest("messages: the last one is of the assistant; the model begins its turns itself")
    return tuple(messages)


def _chat_message(message: object, names: dict[str, str]) -> AskedMessage:
    """Read a message; `names`: those of the tools of all calls so far, by the ids of the calls."""
    if not isinstance(message, dict) or str(message.get("role")) not in _ROLES:
        raise BadRequest("messages: each one needs a role of system, developer, user, assistant or tool")
    if message.get("function_call"):
        raise BadRequest("function_call: this field is not read any more; use tool_calls")
    role, content = _ROLES[message["role"]], _text(message.get("content"))
    if role == "tool":
        return AskedMessage(role, content, _tool_name(message.get("tool_call_id"), names))
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise BadRequest("messages: tool_calls must be a list")
    read = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise BadRequest("messages: each of tool_calls needs a function")
        read.append(_call(call.get("id"), function.get("name"), function.get("arguments"), names))
    return AskedMessage(role, content, None, read)


def _add_item(messages: list[AskedMessage], item: object, names: dict[str, str]) -> None:
    """Add an item of the input of `/v1/responses`; what the assistant says and calls at once is one message."""
    if not isinstance(item, dict):
        raise BadRequest("input: each item must be an object")
    match item.get("type", "message"):
        case "message" if str(item.get("role")) in _ROLES and item["role"] != "tool":
            messages.append(AskedMessage(_ROLES[item["role"]], _text(item.get("content"))))
        case "function_call":
            call = _call(item.get("call_id"), item.get("name"), item.get("arguments"), names)
            last = messages[-1] if messages and messages[-1].role == "assistant" else AskedMessage("assistant", "")
            if messages and last is messages[-1]:
                messages.pop()
            messages.append(AskedMessage("assistant", last.content, None, [*last.calls, call]))
        case "function_call_output":
            name = _tool_name(item.get("call_id"), names)
            messages.append(AskedMessage("tool", _text(item.get("output")), name))
        case "reasoning":
            pass
        case other:
            raise BadRequest(f"input: items of type {other!r} are not known here")


def _call(call_id: object, name: object, arguments: object, names: dict[str, str]) -> ToolCall:
    try:
        read = json.loads(arguments) if isinstance(arguments, str) and arguments else arguments or {}
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"tool_calls: arguments are not valid JSON ({error})") from error
    if not isinstance(name, str) or not isinstance(read, dict):
        raise BadRequest("tool_calls: each one needs a name, and an object as arguments")
    names[str(call_id)] = name
    return ToolCall(name, read)


def _tool_name(call_id: object, names: Mapping[str, str]) -> str:
    if str(call_id) not in names:
        raise BadRequest("tool_call_id: no message before calls a tool with this id")
    return names[str(call_id)]


def _text(content: object) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise BadRequest("content: a text or a list of parts is required")
    texts = []
    for part in content:
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
        if not isinstance(text, str) or str(part.get("type")) not in _TEXT_TYPES:
            raise BadRequest("content: the model reads text only")
        texts.append(text)
    return "".join(texts)


def _chat_head(turn: ModelTurn, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{turn.number}", "object": kind, "created": int(time.time()), "model": MODEL}


def _chat_calls(turn: ModelTurn) -> list[dict[str, Any]]:
    return [
        {
            "id": turn.call_id(index),
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for index, call in enumerate(turn.calls)
    ]


def _chat_usage(turn: ModelTurn) -> dict[str, int]:
    return {
        "prompt_tokens": turn.num_prompt_tokens,
        "completion_tokens": turn.num_tokens,
        "total_tokens": turn.num_prompt_tokens + turn.num_tokens,
    }


def _content(turn: ModelTurn) -> str | None:
    return turn.content if turn.content or not turn.calls else None


def _finish_reason(turn: ModelTurn) -> str:
    return "length" if turn.is_cut else "tool_calls" if turn.calls else "stop"
