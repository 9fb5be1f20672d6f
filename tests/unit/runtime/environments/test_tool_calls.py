"""Calls of tools are read from the text of a turn, and none that is malformed costs more than itself."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_runtime.environments.pod_protocol import MAX_MESSAGES, Act, ToolCall, decode_question, encode
from longshore_runtime.environments.tool_calls import (
    READERS,
    Call,
    Reader,
    Turn,
    read_hermes,
    read_llama_json,
    read_qwen_xml,
    read_turn,
)
from tests.unit.runtime.environments.chat_templates import GUESS, tool

GOOD = '<tool_call>\n{"name": "guess", "arguments": {"number": 4}}\n</tool_call>'
GUESS_4 = Call("guess", {"number": 4})


def hermes(text: str) -> Turn:
    return read_turn(text, (GUESS,), read_hermes)


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("Is it 4?", Turn("Is it 4?")),
        (" 4 ", Turn(" 4 ")),
        (GOOD, Turn("", (GUESS_4,))),
        (f"I try.\n{GOOD}\n{GOOD} Go.", Turn("I try.\n\n Go.", (GUESS_4, GUESS_4))),
        (GOOD.removesuffix("</tool_call>"), Turn("", (GUESS_4,))),
        (f"<think>\nmaybe {GOOD}\n</think>\n\nNo.", Turn(f"<think>\nmaybe {GOOD}\n</think>\n\nNo.")),
        (f"<think>\nso {GOOD}", Turn(f"<think>\nso {GOOD}")),
        (f"<think>\nso\n</think>\n\n{GOOD}", Turn("<think>\nso\n</think>", (GUESS_4,))),
        (f"so\n</think>\n\n{GOOD}", Turn("so\n</think>", (GUESS_4,))),
    ],
    ids=["none", "spaces", "one", "two", "not closed", "thought", "only thought", "after it", "thought of the prompt"],
)
def test_calls_in_hermes_format_are_read_outside_of_thoughts(text: str, turn: Turn) -> None:
    assert hermes(text) == turn


@pytest.mark.parametrize(
    ("block", "error"),
    [
        ("{oops", "the call is not valid JSON"),
        ('{"name": "guess", "arguments": {"number": NaN}}', "the call is not valid JSON"),
        ('{"name": "guess", "arguments": {"why": "\\ud800"}}', "the call is not valid JSON"),
        ("[" * 100_000, "the call is not valid JSON"),
        ("[1]", "the call is not a JSON object"),
        ('{"arguments": {}}', "the call has no name of a tool"),
        ('{"name": "", "arguments": {}}', "the call has no name of a tool"),
        ('{"name": 3, "arguments": {}}', "the call has no name of a tool"),
        (f'{{"name": "{"g" * 257}", "arguments": {{}}}}', "the call has no name of a tool"),
        ('{"name": "guess"}', "the arguments of the call of guess are not a JSON object"),
        ('{"name": "guess", "arguments": [4]}', "the arguments of the call of guess are not a JSON object"),
        (
            f'{{"name": "guess", "arguments": {{"number": {"[" * 64}{"]" * 64}}}}}',
            "the arguments of the call of guess have",
        ),
    ],
)
def test_a_malformed_call_has_no_name_and_leaves_the_others(block: str, error: str) -> None:
    bad, good = hermes(f"<tool_call>{block}</tool_call>{GOOD}").calls
    assert good == GUESS_4
    assert (bad.name, bad.arguments) == ("", {})
    assert bad.error.startswith(error)


def test_a_turn_with_more_calls_than_a_pod_may_answer_has_one_that_is_refused() -> None:
    assert len(hermes(GOOD * MAX_MESSAGES).calls) == MAX_MESSAGES
    (call,) = hermes(GOOD * (MAX_MESSAGES + 1)).calls
    assert (call.name, call.error) == ("", "a turn may have at most 256 calls, this one has 257")


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ('{"name": "guess", "parameters": {"number": 4}}', Turn("", (GUESS_4,))),
        ('<|python_tag|>{"type": "function", "name": "guess", "parameters": {"number": 4}}\n', Turn("", (GUESS_4,))),
        ('{"answer": 4}', Turn('{"answer": 4}')),
        ("{1, 2}", Turn("{1, 2}")),
        ('I call {"name": "guess"}', Turn('I call {"name": "guess"}')),
    ],
    ids=["call", "with its tag", "another object", "set", "amid a text"],
)
def test_a_turn_of_llama_is_a_call_or_a_text(text: str, turn: Turn) -> None:
    assert read_turn(text, (GUESS,), read_llama_json) == turn


def test_two_calls_of_llama_in_one_turn_are_refused() -> None:
    text = '{"name": "guess", "parameters": {"number": 4}}; {"name": "guess", "parameters": {"number": 5}}'
    (call,) = read_turn(text, (GUESS,), read_llama_json).calls
    assert call.error.startswith("the call is not valid JSON")


TYPED = tool("f", text="string", maybe=["string", "null"], number="integer", flag="boolean", items="array", any=None)


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("text", "12", "12"),
        ("text", "\n a\n\nb \n", "\n a\n\nb \n"),
        ("maybe", "null", "null"),
        ("number", "12", 12),
        ("number", "twelve", "twelve"),
        ("flag", "True", True),
        ("flag", "false", False),
        ("items", '[1, {"a": "b"}]', [1, {"a": "b"}]),
        ("any", "a", "a"),
        ("unknown", "3", 3),
    ],
)
def test_a_parameter_in_xml_has_the_type_of_its_schema(key: str, written: str, value: object) -> None:
    text = f"<tool_call>\n<function=f>\n<parameter={key}>\n{written}\n</parameter>\n</function>\n</tool_call>"
    assert read_turn(text, (GUESS, TYPED), read_qwen_xml) == Turn("", (Call("f", {key: value}),))


@pytest.mark.parametrize(
    "function",
    [3, {}, {"name": "f"}, {"name": "f", "parameters": []}, {"name": "f", "parameters": {"properties": {"a": 1}}}],
)
def test_a_schema_that_is_none_leaves_parameters_untyped(function: object) -> None:
    text = "<tool_call><function=f><parameter=a>3</parameter></function></tool_call>"
    assert read_turn(text, ({"function": function},), read_qwen_xml).calls == (Call("f", {"a": 3}),)


@pytest.mark.parametrize(
    ("block", "error"),
    [
        ("guess(4)", "the call is not written as <function=name>...</function>"),
        ("<function=f><parameter=a>1", "the call is not written as <function=name>...</function>"),
        ("<function=f><parameter=a>1</function>", "a parameter of the call of f is not closed with </parameter>"),
    ],
)
def test_a_malformed_call_in_xml_has_no_name(block: str, error: str) -> None:
    (call,) = read_turn(f"<tool_call>{block}</tool_call>", (TYPED,), read_qwen_xml).calls
    assert call == Call("", error=error)


PIECES = [
    *("<tool_call>", "</tool_call>", "<function=", "guess", ">", "<parameter=number>", "<parameter=", "</parameter>"),
    *("</function>", '{"name": "guess", "arguments": ', '{"number": 4}', '{"name": "', '", "parameters": ', "{", "}"),
    *("<think>", "</think>", "\n", "[" * 90, "]" * 90, '"\\ud800"', "\x00", "9" * 40, "1e400"),
]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=12).map("".join), st.sampled_from(READERS))
def test_calls_of_any_text_can_be_sent_to_a_pod(text: str, reader: Reader) -> None:
    turn = read_turn(text, (GUESS,), reader)
    assert all((call.name == "") == (call.error != "") for call in turn.calls)
    act = Act(0, turn.content, [ToolCall(call.name, dict(call.arguments), call.error) for call in turn.calls])
    assert decode_question(encode(act)) == act


def test_arguments_of_the_largest_depth_can_be_sent_to_a_pod() -> None:
    levels = "[" * 63 + "]" * 63
    (call,) = hermes(f'<tool_call>{{"name": "guess", "arguments": {{"number": {levels}}}}}</tool_call>').calls
    act = Act(0, "", [ToolCall(call.name, dict(call.arguments))])
    assert call.arguments == {"number": orjson.loads(levels)}
    assert decode_question(encode(act)) == act
