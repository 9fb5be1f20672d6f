"""Make tokens of conversations turn by turn: what was sampled or observed before is never tokenised again.

    prompt ──► turn, sampled ──► delta ──► turn, sampled ──► delta ──► ...

A prompt ends where the assistant begins to speak. A turn ends with the end token of the chat template. A delta is
what the template writes after that token: the rest of the turn, the observations, and the beginning of the next turn.
"""

import bisect
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy.typing as npt

from longshore.api.model import Chat
from longshore_runtime.data.chat import Message, conversation, rendered
from longshore_runtime.data.turn_end import turn_end
from longshore_runtime.environments.pod_protocol import Observation
from longshore_runtime.environments.tool_calls import DELIMITERS, READERS, Call, Reader, Tools, Turn, read_turn
from longshore_runtime.errors import UserError
from longshore_runtime.trajectories.episode import with_observation
from longshore_runtime.trajectories.trajectory import TokenIds, token_ids

_FIELD: Final = "data.chat.template"
_ASKED: Final = {"role": "user", "content": "1 + 1"}
_MARK: Final = "longshore_turn"
"""Text of a dummy turn: a word that no default system prompt has."""
_THOUGHTFUL: Final = f"<think>\n{_MARK}\n</think>\n\n{_MARK}"
"""A dummy turn with a thought, which some templates write in another way, or drop once other messages follow."""
_MOST_CHECKED: Final = 64
"""A pod may name new tools for every episode; no more are remembered."""
_EXAMPLE: Final = Call("add", {"first": 7, "second": "two words"})
_EXAMPLE_TOOL: Final = {
    "type": "function",
    "function": {
        "name": _EXAMPLE.name,
        "description": "Add.",
        "parameters": {
            "type": "object",
            "properties": {
                "first": {"type": "integer", "description": "Number."},
                "second": {"type": "string", "description": "Words."},
            },
            "required": ["first", "second"],
        },
    },
}


class Conversations:
    """The conversations of a job, with one chat template and one tokenizer."""

    def __init__(self, chat: Chat | None, tokenizer: Any) -> None:
        """Keep both; `tokenizer` is one of Hugging Face."""
        self._chat = chat
        self._tokenizer = tokenizer
        self._checked: set[str] = set()
        """Tools that `check` has found to suit, as text."""
        self._hidden = {
            number
            for number, token in tokenizer.added_tokens_decoder.items()
            if token.special and token.content not in DELIMITERS
        }

    def check(self, tools: Tools = ()) -> None:
        """Check that the chat template suits an environment with these tools, or with none.

        Raises:
            UserError: the template does not end turns with a special token, writes earlier turns in another way once
                messages follow, does not show tools, or writes calls in a format that is not known.
        """
        if (key := repr(tools)) in self._checked:
            return
        start = conversation([_ASKED], self._chat)
        prompt = self._text(start, tools)
        if tools and prompt == self._text(start):
            raise UserError(
                f"{_FIELD}: the chat template does not show the model the tools of its environment; set one that "
                "writes `tools`"
            )
        if tools and self._reader is None:
            raise UserError(
                f"{_FIELD}: the chat template writes tool calls in no format that is known (JSON of Hermes or Llama 3, "
                "XML of Qwen3-Coder); set one that does, or use an environment without tools"
            )
        # A turn has a thought where the prompt begins one, and none where the prompt has an empty one.
        keeps = any(self._keeps_prefixes(start, tools, content) for content in (_MARK, _THOUGHTFUL))
        if not keeps or not self._keeps_thoughts(start, tools):
            raise UserError(
                f"{_FIELD}: the chat template writes earlier turns in another way once messages follow, or drops their "
                "thoughts, so it does not continue what was sampled; set one that writes each message in one way"
            )
        if len(self._checked) < _MOST_CHECKED:
            self._checked.add(key)

    def _keeps_prefixes(self, start: Sequence[Message], tools: Tools, content: str) -> bool:
        """Return whether a prompt, and a conversation of two turns, begin a longer one, with a delta in between."""
        exchange = _exchange([_neutral(tools)], len(tools[:1]), content)
        delta = self._delta_text([_neutral(tools)])
        stages = [self._text((*start, *exchange * num_turns), tools) for num_turns in range(3)]
        return all(
            after.startswith(before) and self._after_turn(after[len(before) :]) == delta
            for before, after in pairwise(stages)
        )

    def _keeps_thoughts(self, start: Sequence[Message], tools: Tools) -> bool:
        """Return whether a turn that is not the last one has all that it has as the last one."""
        turn, *observations = _exchange([_neutral(tools)], len(tools[:1]), _THOUGHTFUL)
        last = self._text((*start, turn), tools, is_prompt=False)
        return last.count(_MARK) == self._text((*start, turn, *observations), tools).count(_MARK)

    def prompt(self, messages: Sequence[Message], observation: str | None, tools: Tools) -> TokenIds:
        """Return the prompt of an episode.

        Args:
            messages: the prompt of the row as a conversation.
            observation: what the environment's `reset` returned; it is added to the last message of the user.
            tools: schemas of the tools of the environment.
        """
        given = messages if observation is None else _with_observation(messages, observation)
        return self._tokens(self._text(given, tools))

    def turn(self, tokens: npt.ArrayLike, tools: Tools) -> Turn:
        """Return what the policy said in the sampled tokens of one turn; it calls nothing where there are no tools."""
        text = self._decoded(tokens)
        if not tools:
            return Turn(text)
        assert self._reader is not None, "`check` refuses tools whose calls cannot be read"
        return read_turn(text, tools, self._reader)

    def stopped(self, tokens: TokenIds, stop: Sequence[str]) -> tuple[TokenIds, str | None]:
        """Return a turn up to the token with which one of these texts is complete, and its text before that one.

        The text is None, and the turn whole, if it has none of them.
        """

        def place(num_tokens: int) -> int:
            text = self._decoded(tokens[:num_tokens])
            return min((found for one in stop if (found := text.find(one)) >= 0), default=-1)

        if place(len(tokens)) < 0:
            return tokens, None
        num_tokens = bisect.bisect_left(range(len(tokens)), True, key=lambda number: place(number) >= 0)
        return tokens[:num_tokens], self._decoded(tokens[:num_tokens])[: place(num_tokens)]

    def delta(self, observations: Sequence[Observation]) -> TokenIds:
        """Return the tokens that follow a turn which has ended with the end token of the chat template."""
        # Tokenizers treat the beginning of a text in another way than what follows a special token.
        end, *tokens = self._tokenizer.encode(
            f"{self._end_text}{self._delta_text(observations)}", add_special_tokens=False
        )
        assert end == self.end_token, "a special token is one token"
        return token_ids(tokens)

    def text_delta(self, text: str) -> TokenIds:
        """Return the tokens of an observation in an episode whose prompt is a plain text, without special tokens."""
        return self._tokens(text)

    @cached_property
    def end_token(self) -> int:
        """Token with which the chat template ends a turn; raises UserError if it is no special token."""
        token = turn_end(self._chat, self._tokenizer)
        if token is None:
            raise UserError(
                f"{_FIELD}: the chat template ends what the assistant says without a special token of the tokenizer, "
                "so an environment cannot answer; set one that ends it with one"
            )
        return token

    @property
    def _end_text(self) -> str:
        text: str = self._tokenizer.added_tokens_decoder[self.end_token].content
        return text

    @cached_property
    def _reader(self) -> Reader | None:
        """The format in which the chat template writes a call; None: it is not known."""
        answer = {"role": "assistant", "content": "", "tool_calls": [_written_call(_EXAMPLE, 0)]}
        tools = (_EXAMPLE_TOOL,)
        asked = self._text((_ASKED,), tools, is_prompt=False)
        opening = self._text((_ASKED,), tools).removeprefix(asked)
        text = self._text((_ASKED, answer), tools, is_prompt=False)
        written = text.removeprefix(asked).removeprefix(opening).partition(self._end_text)[0]
        return next((one for one in READERS if read_turn(written, tools, one).calls == (_EXAMPLE,)), None)

    def _delta_text(self, observations: Sequence[Observation]) -> str:
        num_calls = sum(one.role == "tool" for one in observations)
        tools = (_EXAMPLE_TOOL,) if num_calls else ()
        try:
            text = self._text((_ASKED, *_exchange(observations, num_calls)), tools)
        except UserError:
            if num_calls < 2:
                raise
            # The template of Llama 3 takes one call in a message of the assistant, and any number of answers.
            text = self._text((_ASKED, *_exchange(observations, 1)), tools)
        delta = self._after_turn(text)
        if delta is None:
            raise UserError(f"{_FIELD}: the chat template does not write what the assistant says; set one that does")
        return delta

    def _after_turn(self, text: str) -> str | None:
        """Return what follows the first dummy turn in a text; None: it is not there, or does not end."""
        _, _, after_mark = text.partition(_MARK)
        _, end, after = after_mark.partition(self._end_text)
        return after if end else None

    def _decoded(self, tokens: npt.ArrayLike) -> str:
        kept = [token for token in token_ids(tokens).tolist() if token not in self._hidden]
        text: str = self._tokenizer.decode(kept, skip_special_tokens=False)
        return text

    def _text(self, messages: Sequence[Message], tools: Tools = (), *, is_prompt: bool = True) -> str:
        return rendered(messages, self._chat, self._tokenizer, "an episode", tools=tools, is_prompt=is_prompt)

    def _tokens(self, text: str) -> TokenIds:
        return token_ids(self._tokenizer.encode(text, add_special_tokens=False))


def _with_observation(messages: Sequence[Message], observation: str) -> tuple[Message, ...]:
    try:
        return with_observation(messages, observation)
    except ValueError as error:
        raise UserError(
            "data.promptField: a prompt without a message of the user cannot take what the environment's reset "
            "returns; add one, or return None"
        ) from error


def _neutral(tools: Tools) -> Observation:
    return Observation("tool", "2", _EXAMPLE.name) if tools else Observation("user", "2")


def _exchange(observations: Sequence[Observation], num_calls: int, content: str = _MARK) -> tuple[Message, ...]:
    """Return a dummy turn with calls, and the observations that follow it.

    The turn has the mark as its text and as its calls, because the template of Llama 3 writes only one of them.
    """
    calls = [_written_call(Call(_MARK), number) for number in range(num_calls)]
    answer = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
    return (answer, *(_message(one, number) for number, one in enumerate(observations)))


def _written_call(call: Call, number: int) -> Mapping[str, Any]:
    function = {"name": call.name, "arguments": dict(call.arguments)}
    return {"type": "function", "id": _call_id(number), "function": function}


def _message(observation: Observation, number: int) -> Message:
    message = {"role": observation.role, "content": observation.content}
    if observation.role != "tool":
        return message
    return {**message, "name": observation.name or "", "tool_call_id": _call_id(number)}


def _call_id(number: int) -> str:
    return f"call{number:05d}"  # Some templates insist on nine letters and digits.
