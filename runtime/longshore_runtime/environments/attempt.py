"""One attempt at an episode: its turns, one after the other, between an engine and an environment."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from longshore.api.environment import Environment
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion, FinishReason
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.environments.conversation import Conversations
from longshore_runtime.environments.events import EpisodeBegun, EpisodeNews, EpisodeOver, TurnAnswered
from longshore_runtime.environments.link import EpisodeError, PodLink
from longshore_runtime.environments.pod_protocol import (
    Act,
    Acted,
    Answer,
    Finish,
    Finished,
    Observation,
    Open,
    Opened,
    Question,
    ToolCall,
)
from longshore_runtime.environments.tool_calls import Turn
from longshore_runtime.errors import UserError
from longshore_runtime.rewards.fork_server import START_LIMIT_S
from longshore_runtime.trajectories.episode import Episode, Message
from longshore_runtime.trajectories.trajectory import TokenIds, joined, token_ids

_GRACE_S: Final = 30.0
"""How much later than a limit of time, which the pod keeps itself, an answer may come."""
_IMPORTS_S: Final = 2 * START_LIMIT_S
"""How much longer the first episode may take to begin, whose environment is imported and forked then."""

_MOST_CHARACTERS_PER_TOKEN: Final = 32
_SHORT_TEXT: Final = 4096
"""Number of characters that may always be tokenized."""

A = TypeVar("A", bound=Answer)


@dataclass(frozen=True)
class EpisodeLimits:
    """Limits of every episode of a job."""

    max_response_tokens: int
    max_context_tokens: int


@dataclass(eq=False)
class RunningEpisode:
    """An episode, in all of its attempts."""

    number: int
    response: ResponseId
    environment: Environment
    record: PromptRecord
    seed: int
    turns: "asyncio.Queue[Completion]" = field(default_factory=asyncio.Queue)
    """Responses with all of their tokens, each at the end of a turn."""
    num_restarts: int = 0
    environment_s: float = 0.0


class Attempt:
    """Follows an episode from its beginning to its end."""

    def __init__(
        self,
        episode: RunningEpisode,
        number: int,
        link: PodLink,
        conversations: Conversations,
        limits: EpisodeLimits,
        put: Callable[[EpisodeNews], None],
    ) -> None:
        """Prepare the attempt; `number` is that of the episode in its pod."""
        self._episode = episode
        self._number = number
        self._link = link
        self._conversations = conversations
        self._limits = limits
        self._put = put
        self._messages: list[Message] = []
        self._tools: Sequence[Mapping[str, Any]] = ()
        self._observation: str | None = None
        self._is_full = False
        """Whether no token is left for what the environment says."""
        self._num_turns = 0
        self._num_failed_calls = 0

    async def run(self) -> None:
        """Return when the episode is over; raises EpisodeError."""
        prompt_tokens = await self.begin()
        self._put(EpisodeBegun(self._episode.response, self._episode.number, prompt_tokens))
        num_known = 0
        while True:
            completion = await self._episode.turns.get()
            tokens = completion.trajectory.tokens
            observed = await self._answer_to(tokens[num_known:], completion)
            if observed is None:
                is_cut = self._is_full or completion.finish_reason is FinishReason.LENGTH
                return await self._end(prompt_tokens, is_cut=is_cut)
            num_known = len(tokens) + len(observed)
            if num_known >= self._limits.max_response_tokens:
                return await self._end(prompt_tokens, is_cut=True)
            if self._num_turns == self._episode.environment.max_turns:
                return await self._end(prompt_tokens, is_cut=False)  # All that was said is whole.
            self._put(TurnAnswered(self._episode.response, self._episode.number, observed))

    async def begin(self) -> TokenIds:
        """Return the tokens before the first turn; raises EpisodeError."""
        episode = self._episode
        question = Open(self._number, episode.environment.name, dict(episode.record.fields), episode.seed)
        opened = await self._ask(question, Opened, grace_s=_IMPORTS_S)
        self._tools, self._observation = opened.tools, opened.observation
        return episode_prompt(episode.record, opened, self._conversations, self._limits)

    async def _answer_to(self, tokens: TokenIds, completion: Completion) -> TokenIds | None:
        """Return the tokens with which the environment answers a turn; None: the episode is over."""
        turn = self._conversations.turn(tokens, self._tools)
        self._num_turns += 1
        self._messages.append(_message(turn))
        if completion.finish_reason is FinishReason.LENGTH:
            return None  # The turn has no end, and nothing can follow it.
        calls = [ToolCall(call.name, dict(call.arguments), call.error) for call in turn.calls]
        acted = await self._ask(Act(self._number, turn.content, calls), Acted, num_calls=max(1, len(calls)))
        self._num_failed_calls += acted.num_failed_calls
        self._messages += [one.message for one in acted.observations]
        if not acted.observations:
            return None
        num_left = self._limits.max_response_tokens - len(completion.trajectory)
        if _is_too_long("".join(one.content for one in acted.observations), num_left):
            self._is_full = True
            return None
        observed = observed_tokens(self._episode.record, acted.observations, self._conversations)
        is_closed = not self._episode.record.messages or tokens[-1] == self._conversations.end_token
        # Models have other end tokens, too, after which the template's is missing: it is observed, and not trained on.
        return observed if is_closed else joined(token_ids([self._conversations.end_token]), observed)

    async def _end(self, prompt_tokens: TokenIds, *, is_cut: bool) -> None:
        finished = await self._ask(Finish(self._number), Finished)
        over = Episode(
            prompt_tokens=prompt_tokens,
            observation=self._observation,
            messages=self._messages,
            reward=finished.reward,
            num_turns=self._num_turns,
            num_failed_calls=self._num_failed_calls,
            environment_s=self._episode.environment_s,
            num_restarts=self._episode.num_restarts,
        )
        self._put(EpisodeOver(self._episode.response, self._episode.number, over, is_cut))

    async def _ask(self, question: Question, kind: type[A], num_calls: int = 1, grace_s: float = _GRACE_S) -> A:
        """Ask the environment, which may take its time for each of these calls; raises EpisodeError."""
        started_s = time.monotonic()
        try:
            limit_s = num_calls * self._episode.environment.call_timeout_s + grace_s
            return await self._link.ask(question, kind, limit_s)
        finally:
            self._episode.environment_s += time.monotonic() - started_s


def episode_prompt(
    record: PromptRecord, opened: Opened, conversations: Conversations, limits: EpisodeLimits
) -> TokenIds:
    """Return the tokens before the first turn of an episode that has begun; raises EpisodeError."""
    most = limits.max_context_tokens - limits.max_response_tokens
    if _is_too_long(begun := opened.observation or "", most):
        raise EpisodeError(
            f"its environment begins with {len(begun):,} characters, and model.maxContextTokens less algorithm."
            f"maxResponseTokens leaves {most:,} tokens"
        )
    prompt_tokens = _prompt(record, opened, conversations)
    if len(prompt_tokens) > most:
        raise EpisodeError(
            f"its prompt has {len(prompt_tokens):,} tokens with what the environment adds to it, and model."
            f"maxContextTokens less algorithm.maxResponseTokens leaves {most:,}"
        )
    return prompt_tokens


def _prompt(record: PromptRecord, opened: Opened, conversations: Conversations) -> TokenIds:
    require_conversation(record, opened)
    if not record.messages:
        return joined(record.prompt_tokens, conversations.text_delta(opened.observation or ""))
    try:
        conversations.check(opened.tools)
        return conversations.prompt(record.messages, opened.observation, opened.tools)
    except UserError as error:
        raise EpisodeError(str(error), is_users_mistake=True) from error


def require_conversation(record: PromptRecord, opened: Opened) -> None:
    """Raise EpisodeError if there are tools, and no chat template that shows them to the model."""
    if opened.tools and not record.messages:
        raise EpisodeError(
            "data.chat: the tools of an environment need prompts that are conversations; set it to {}",
            is_users_mistake=True,
        )


def observed_tokens(
    record: PromptRecord, observations: Sequence[Observation], conversations: Conversations
) -> TokenIds:
    """Return the tokens of what an environment says, up to the beginning of the next turn; raises EpisodeError."""
    if record.messages:
        try:
            return conversations.delta(observations)
        except UserError as error:  # The template has no place for what this environment says.
            raise EpisodeError(str(error)) from error
    return conversations.text_delta("".join(one.content for one in observations))


def _is_too_long(text: str, num_tokens: int) -> bool:
    """Return whether a text cannot fit into so many tokens: to find out by tokenizing would keep all others waiting."""
    return len(text) > max(_SHORT_TEXT, _MOST_CHARACTERS_PER_TOKEN * num_tokens)


def _message(turn: Turn) -> Message:
    calls = [{"type": "function", "function": {"name": one.name, "arguments": one.arguments}} for one in turn.calls]
    return {"role": "assistant", "content": turn.content, **({"tool_calls": calls} if calls else {})}
