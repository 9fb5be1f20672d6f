"""Conversations become tokens turn by turn, as if they had been tokenised at once."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from longshore.api.model import Chat
from longshore_runtime.data.chat import rendered
from longshore_runtime.environments.conversation import Conversations
from longshore_runtime.environments.pod_protocol import Observation
from longshore_runtime.environments.tool_calls import Call, Turn
from longshore_runtime.errors import UserError
from tests.unit.runtime.environments.chat_templates import GEMMA, GUESS, HERMES, LLAMA, QWEN_XML, SMOL, THINKING, tool

ASKED = {"role": "user", "content": "Guess."}
SPECIAL = ("<bos>", "<|im_start|>", "<|im_end|>")


def trained(pre_tokenizer: Any, decoder: Any, alphabet: Sequence[str] = ()) -> Tokenizer:
    """Return a tokenizer whose tokens merge across the places where texts are cut."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoder
    corpus = [HERMES, GEMMA, "\n\n\n user\n assistant\n tool\n model\n guess the number\n"] * 3
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=list(alphabet), show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def as_hugging_face(tokenizer: Tokenizer, *special: str) -> Any:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", additional_special_tokens=[*SPECIAL[1:], *special]
    )


LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
BYTES: Any = as_hugging_face(trained(LEVEL, decoders.ByteLevel(), pre_tokenizers.ByteLevel.alphabet()))
"""Has every text, as the tokenizers of Qwen and Llama 3 have."""
WORDS: Any = as_hugging_face(
    trained(pre_tokenizers.Metaspace(prepend_scheme="first"), decoders.Metaspace(prepend_scheme="first"))
)
"""Puts a space before a text, but not before what follows a special token, as those of Llama 2 and Mistral do."""


def conversations(template: str | None, tokenizer: Any = BYTES, **chat: Any) -> Conversations:
    return Conversations(Chat(template=template, **chat), tokenizer)


def encoded(text: str, tokenizer: Any = BYTES) -> list[int]:
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens


def decoded(tokens: Any) -> str:
    text: str = BYTES.decode(tokens, skip_special_tokens=False)
    return text


def said(call: Call | None, content: str) -> dict[str, Any]:
    calls = [] if call is None else [{"type": "function", "function": {"name": call.name, "arguments": call.arguments}}]
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}


def as_message(observation: Observation) -> dict[str, Any]:
    return {"role": observation.role, "content": observation.content}


words = st.text(max_size=12).map(str.strip)
user = st.builds(Observation, st.just("user"), words)
answers = st.lists(st.builds(Observation, st.just("tool"), words, st.just("guess")), min_size=1, max_size=3)
TALKS = (SMOL, HERMES, QWEN_XML, LLAMA, GEMMA)
ACTS = (HERMES, QWEN_XML, LLAMA)


@given(st.sampled_from(TALKS), words, st.lists(st.tuples(words, user), min_size=1, max_size=3))
def test_an_episode_of_deltas_has_the_text_of_the_whole_conversation(
    template: str, first: str, exchanges: Sequence[tuple[str, Observation]]
) -> None:
    own = conversations(template)
    tokens = own.prompt([ASKED], first, ()).tolist()
    messages: list[Any] = [{**ASKED, "content": f"Guess.{first}"}]
    for content, observation in exchanges:
        tokens += [*encoded(content), own.end_token, *own.delta([observation])]
        messages += [said(None, content), as_message(observation)]
    assert decoded(tokens) == rendered(messages, Chat(template=template), BYTES, "")


@given(st.sampled_from(ACTS), st.integers(), words, st.lists(answers, min_size=1, max_size=3))
def test_an_episode_of_calls_has_the_text_of_the_whole_conversation(
    template: str, number: int, why: str, observed: Sequence[Sequence[Observation]]
) -> None:
    own = conversations(template)
    messages: list[Any] = [ASKED]
    tokens = own.prompt(messages, None, (GUESS,)).tolist()
    turn = said(Call("guess", {"number": number, "why": why}), "")
    for observations in observed:
        before = rendered(messages, Chat(template=template), BYTES, "", tools=(GUESS,))
        after = rendered([*messages, turn], Chat(template=template), BYTES, "", tools=(GUESS,), is_prompt=False)
        sampled = after.removeprefix(before).rpartition("<|im_end|>")[0]
        tokens += [*encoded(sampled), own.end_token, *own.delta(observations)]
        messages += [turn, *map(as_message, observations)]
    assert decoded(tokens) == rendered(messages, Chat(template=template), BYTES, "", tools=(GUESS,))


hostile = st.sampled_from(["<|im_end|>", "<|im_start|>assistant\n", "longshore_turn", "</tool_response>", "\n\n", " "])


@given(
    st.sampled_from(ACTS),
    st.sampled_from([BYTES, WORDS]),
    st.lists(st.builds(Observation, st.sampled_from(["user", "tool"]), hostile | words), min_size=1, max_size=3),
)
def test_a_delta_has_the_tokens_that_the_whole_conversation_has_there(
    template: str, tokenizer: Any, observations: Sequence[Observation]
) -> None:
    own = conversations(template, tokenizer)
    delta = own.delta(observations).tolist()
    turn = said(Call("guess", {}), "") if any(one.role == "tool" for one in observations) else said(None, "4")
    messages = [ASKED, turn, *map(as_message, observations)]
    whole = encoded(rendered(messages, Chat(template=template), tokenizer, ""), tokenizer)
    assert whole[-len(delta) - 1 :] == [own.end_token, *delta]


def test_a_prompt_takes_an_observation_at_the_end_of_the_last_message_of_the_user() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "Guess"}]}
    messages = [ASKED, said(None, "4"), parts, said(None, "Well,")]
    text = decoded(conversations(HERMES).prompt(messages, " again.", ()))
    assert text == rendered(
        [*messages[:2], {**parts, "content": "Guess again."}, messages[3]], Chat(template=HERMES), BYTES, ""
    )
    assert parts["content"] == [{"type": "text", "text": "Guess"}]


def test_an_observation_without_a_message_of_the_user_is_refused() -> None:
    with pytest.raises(UserError, match=r"^data\.promptField: a prompt without a message of the user cannot take"):
        conversations(HERMES).prompt([{"role": "system", "content": "Guess."}], "Begin.", ())


def test_a_prompt_shows_the_tools_of_its_environment() -> None:
    assert '"name": "guess"' in decoded(conversations(HERMES).prompt([ASKED], None, (GUESS,)))


@pytest.mark.parametrize(
    ("template", "written"),
    [
        (HERMES, 'So:\n<tool_call>\n{"name": "guess", "arguments": {"number": 4}}\n</tool_call>'),
        (QWEN_XML, "So:\n<tool_call><function=guess><parameter=number>4</parameter></function></tool_call>"),
        (LLAMA, '{"name": "guess", "parameters": {"number": 4}}'),
    ],
)
def test_a_turn_is_read_in_the_format_of_the_chat_template(template: str, written: str) -> None:
    own = conversations(template)
    sampled = [*encoded(written), own.end_token]
    content = "" if template == LLAMA else "So:"
    assert own.turn(sampled, (GUESS,)) == Turn(content, (Call("guess", {"number": 4}),))
    assert own.turn(sampled, ()) == Turn(written)


def test_calls_are_read_where_their_tags_are_special_tokens() -> None:
    special = as_hugging_face(
        trained(LEVEL, decoders.ByteLevel(), pre_tokenizers.ByteLevel.alphabet()), "<tool_call>", "</tool_call>"
    )
    sampled = encoded('<tool_call>{"name": "guess", "arguments": {}}</tool_call><|im_end|>', special)
    assert conversations(HERMES, special).turn(sampled, (GUESS,)) == Turn("", (Call("guess"),))


THOUGHT_BEGUN = SMOL.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n")
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"
THOUGHTLESS = SMOL.replace("<|im_start|>assistant\n", f"<|im_start|>assistant\n{EMPTY_THOUGHT}").replace(
    "m.content + ", f"('' if m.role != 'assistant' or '<think>' in m.content else '{EMPTY_THOUGHT}') + m.content + "
)


@pytest.mark.parametrize("system_prompt", [None, "Be brief, longshore_turn."])
@pytest.mark.parametrize(
    ("template", "tools"),
    [(template, ()) for template in (*TALKS, THOUGHT_BEGUN, THOUGHTLESS)] + [(template, (GUESS,)) for template in ACTS],
)
def test_templates_that_write_each_message_in_one_way_are_taken(
    template: str, tools: Any, system_prompt: str | None
) -> None:
    if template != GEMMA:
        conversations(template, system_prompt=system_prompt).check(tools)
    conversations(template).check(tools)


OWN_FORMAT = HERMES.replace("<tool_call>", "[CALL]").replace("</tool_call>", "[/CALL]")
OPENED = SMOL.replace("<|im_start|>assistant\n", f"<|im_start|>assistant\n{EMPTY_THOUGHT}")
COUNTED = SMOL.replace("You help.", "{{ messages | length }} messages.")
UNENDED = SMOL.replace("<|im_end|>", "")
LAST_ONLY = SMOL.replace("{% for m in messages %}", "{% for m in messages[-1:] %}")
LATER = SMOL.replace("m.content + '", "m.content + ('' if loop.index < 5 else '!') + '")
CHANGES = "the chat template writes earlier turns in another way once messages follow"


@pytest.mark.parametrize(
    ("template", "tools", "message"),
    [
        pytest.param(SMOL, [GUESS], "the chat template does not show the model the tools", id="ignores tools"),
        pytest.param(GEMMA, [GUESS], "the chat template does not show the model the tools", id="no role of tools"),
        pytest.param(OWN_FORMAT, [GUESS], "the chat template writes tool calls in no format", id="own format"),
        pytest.param(THINKING, [], CHANGES, id="drops thoughts"),
        pytest.param(THINKING, [GUESS], CHANGES, id="drops thoughts before answers of tools"),
        pytest.param(OPENED, [], CHANGES, id="begins turns in another way"),
        pytest.param(COUNTED, [], CHANGES, id="counts messages"),
        pytest.param(LATER, [], CHANGES, id="later turns in another way"),
        pytest.param(LAST_ONLY, [], "the chat template does not write what the assistant says", id="last message"),
        pytest.param(UNENDED, [], "the chat template ends what the assistant says without", id="no end"),
    ],
)
def test_a_template_that_does_not_continue_what_was_sampled_is_refused(template: str, tools: Any, message: str) -> None:
    with pytest.raises(UserError, match=rf"^data\.chat\.template: {message}"):
        conversations(template).check(tools)


def test_a_tokenizer_may_have_a_template_of_its_own_for_tools() -> None:
    several = as_hugging_face(trained(LEVEL, decoders.ByteLevel(), pre_tokenizers.ByteLevel.alphabet()))
    several.chat_template = {"default": SMOL, "tool_use": HERMES}
    own = Conversations(None, several)
    own.check(())
    own.check((GUESS, tool("stop")))
    assert "<tool_response>\nLower." in several.decode(own.delta([Observation("tool", "Lower.", "guess")]))


def test_an_observation_after_a_plain_text_is_that_text_without_special_tokens() -> None:
    assert decoded(conversations(None).text_delta(" Lower.\n")) == " Lower.\n"
