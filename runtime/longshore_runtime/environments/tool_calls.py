"""Read tool calls from the text of a turn, in the formats of three model families.

A call that cannot be read is no error of ours: it becomes a `Call` without a name, which an environment refuses as it
refuses an unknown tool, and which says what is wrong with it. The other calls of the turn are kept.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from longshore_runtime.environments.pod_protocol import MAX_MESSAGES
from longshore_runtime.rewards.row_json import is_deeper

Tools = Sequence[Mapping[str, Any]]
"""Schemas of tools, as chat templates take them."""

DELIMITERS: Final = frozenset({"<tool_call>", "</tool_call>", "<think>", "</think>"})
"""Texts that the formats are read by. Some tokenizers have special tokens for them, which decoding must keep."""

MAX_NAME: Final = 256
_MAX_DEPTH: Final = 64
"""Levels of the arguments of a call; messages to a pod may have about 200."""
_BLOCK: Final = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FUNCTION: Final = re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL)
_PYTHON_LITERALS: Final[Mapping[str, Any]] = {"True": True, "False": False, "None": None}


@dataclass(frozen=True)
class Call:
    """A call of a tool that the model wrote."""

    name: str
    """Name of the tool; empty if the call cannot be read."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    """What is wrong with a call that cannot be read, as a sentence for the model."""


@dataclass(frozen=True)
class Turn:
    """What the policy said in one turn."""

    content: str
    """Text of the turn; without its calls, if it has any."""
    calls: tuple[Call, ...] = ()


Reader = Callable[[str, Tools], Turn]
"""Reads the answer of a turn, which is its text without the thoughts before it."""


def read_turn(text: str, tools: Tools, reader: Reader) -> Turn:
    """Return the turn that a text is; calls in its thoughts are drafts and do not count."""
    thoughts, closes, answer = text.partition("</think>")
    if not closes:
        if "<think>" in text:
            return Turn(text)
        thoughts, answer = "", text
    turn = reader(answer, tools)
    if not turn.calls:
        return Turn(text)
    calls = turn.calls
    if len(calls) > MAX_MESSAGES:
        calls = (_unreadable(f"a turn may have at most {MAX_MESSAGES} calls, this one has {len(calls)}"),)
    return Turn(f"{thoughts}{closes}{turn.content}".strip(), calls)


def _unreadable(error: str) -> Call:
    return Call("", error=error)


def _read_blocks(text: str, read: Callable[[str], Call]) -> Turn:
    """Read one call from each `<tool_call>`; the last one need not be closed, as for vLLM."""
    return Turn(_BLOCK.sub("", text), tuple(read(block) for block in _BLOCK.findall(text)))


def read_hermes(text: str, _tools: Tools) -> Turn:
    """Read the calls of Hermes, Qwen2.5 and Qwen3: JSON with `name` and `arguments` in `<tool_call>`."""
    return _read_blocks(text, _json_call)


def read_qwen_xml(text: str, tools: Tools) -> Turn:
    """Read the calls of Qwen3-Coder and Qwen3.5: `<function=...>` with a `<parameter=...>` each in `<tool_call>`."""
    return _read_blocks(text, lambda block: _xml_call(block, tools))


def read_llama_json(text: str, _tools: Tools) -> Turn:
    """Read the call of Llama 3: a turn that is one JSON object with `name` and `parameters`, and nothing else."""
    stripped = text.strip().removeprefix("<|python_tag|>")
    if not stripped.startswith("{") or '"name"' not in stripped:
        return Turn(text)
    return Turn("", (_json_call(stripped),))


READERS: Final[tuple[Reader, ...]] = (read_hermes, read_qwen_xml, read_llama_json)


def _json_call(text: str) -> Call:
    try:
        found = orjson.loads(text)  # Refuses what JSON has not, such as NaN, and nesting that would exhaust the stack.
    except ValueError as error:
        return _unreadable(f"the call is not valid JSON: {error}")
    if not isinstance(found, dict):
        return _unreadable("the call is not a JSON object")
    return _call(found.get("name"), found.get("arguments", found.get("parameters")))


def _call(name: object, arguments: object) -> Call:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        return _unreadable("the call has no name of a tool")
    if not isinstance(arguments, dict):
        return _unreadable(f"the arguments of the call of {name} are not a JSON object")
    if is_deeper(arguments, _MAX_DEPTH):
        return _unreadable(f"the arguments of the call of {name} have more than {_MAX_DEPTH} levels")
    return Call(name, arguments)


def _xml_call(block: str, tools: Tools) -> Call:
    if (function := _FUNCTION.fullmatch(block)) is None:
        return _unreadable("the call is not written as <function=name>...</function>")
    name, body = function.groups()
    types = _parameter_types(name, tools)
    arguments = dict[str, Any]()
    for parameter in body.split("<parameter=")[1:]:
        key, opened, rest = parameter.partition(">")
        value, closed, _ = rest.partition("</parameter>")
        if not (opened and closed):
            return _unreadable(f"a parameter of the call of {name} is not closed with </parameter>")
        arguments[key] = _typed(value.removeprefix("\n").removesuffix("\n"), types.get(key))
    return _call(name, arguments)


def _parameter_types(name: str, tools: Tools) -> Mapping[str, object]:
    """Return the JSON types of the parameters of a tool; a pod may have sent any schema."""
    for tool in tools:
        match tool:
            case {"function": {"name": found, "parameters": {"properties": dict(properties)}}} if found == name:
                return {key: value.get("type") for key, value in properties.items() if isinstance(value, dict)}
    return {}


def _typed(text: str, types: object) -> object:
    """Return the value of a parameter; a text that does not have its type stays one, which the tool then refuses."""
    if types == "string" or (isinstance(types, list) and "string" in types):
        return text
    if text in _PYTHON_LITERALS:  # The templates of Qwen write truth values as Python does.
        return _PYTHON_LITERALS[text]
    try:
        return orjson.loads(text)
    except ValueError:
        return text
