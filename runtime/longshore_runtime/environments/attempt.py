"""One attempt at an episode: its turns, one after the other, between an engine and an environment."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from longshore.api.environment import Environment
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion, FinishReason
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.environments.conversation import Conversations
from longshore_runtime.environments.events import EpisodeNews, EpisodeOver, TurnWanted
from longshore_runtime.environments.link import EpisodeError, PodLink
from longshore_runtime.environments.pod_protocol import (
    Act,
    Acted,
    Answer,
    Asked,
    FailureCause,
    Finish,
    Finished,
    Observation,
    Open,
    Opened,
    Question,
    ToolCall,
)
from longshore_runtime.environments.tool_calls import Tools, Turn
from longshore_runtime.errors import UserError
from longshore_runtime.rewards.fork_server import START_LIMIT_S
from longshore_runtime.trajectories.episode import Branch, Episode, Message
from longshore_runtime.trajectories.trajectory import EMPTY, TokenIds, Trajectory, joined, token_ids

_GRACE_S: Final = 30.0
"""How much later than a limit of time, which the pod keeps itself, an answer may come."""
_IMPORTS_S: Final = 2 * START_LIMIT_S
"""How much longer the first episode may take to begin, whose environment is imported and forked then."""

_MOST_CHARACTERS_PER_TOKEN: Final = 32
_SHORT_TEXT: Final = 4096
"""Number of characters that may always be tokenized."""


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
    wants_state: bool = False
    """Whether a reward function may read the final state of the environment."""
    turns: "asyncio.Queue[Completion]" = field(default_factory=asyncio.Queue)
    """Responses with all of their tokens, each at the end of a turn."""
    num_restarts: int = 0
    environment_s: float = 0.0
    failures: list[FailureCause] = field(default_factory=list)
    """Causes of failed attempts of which no news has told yet."""

    def take_failures(self) -> tuple[FailureCause, ...]:
        """Return `failures`, which news tells now."""
        taken, self.failures = tuple(self.failures), []
        return taken


@dataclass(eq=False)
class _Branch:
    """A conversation as far as it has come."""

    prompt_tokens: TokenIds
    asked: Sequence[Message] | None
    tools: Tools
    messages: list[Message] = field(default_factory=list)
    trajectory: Trajectory = field(default_factory=lambda: EMPTY)

    def begin_from(self, turn: "_Turn") -> "_Branch":
        """Return a branch that has what this one had after one of its turns as its prompt."""
        tokens = joined(self.prompt_tokens, self.trajectory.tokens[: turn.num_tokens])
        return _Branch(tokens, (*(self.asked or ()), *self.messages[: turn.num_messages]), self.tools)


class _Turn(NamedTuple):
    """A turn that was sampled, by what its branch has after it."""

    branch: _Branch
    num_tokens: int
    num_messages: int


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
        self._observation: str | None = None
        self._asked: Asked | None = None
        """What an agent wants of the present turn; None: it is no agent."""
        self._branches: list[_Branch] = []
        """All conversations, in the order in which they began. The first one is there once the episode has begun."""
        self._branch: _Branch | None = None
        """Conversation of the present turn."""
        self._turns: list[_Turn] = []
        """Turns by their numbers."""
        self._num_failed_calls = 0

    async def run(self) -> None:
        """Return when the episode is over; raises EpisodeError."""
        await self.begin()
        while True:
            self._put(self._turn_wanted())
            is_cut = await self._take_turn(await self._episode.turns.get())
            if is_cut is not None:
                return await self._end(is_cut=is_cut)
            if len(self._turns) == self._episode.environment.max_turns:
                return await self._end(is_cut=False)  # All that was said is whole.

    async def begin(self) -> None:
        """Begin the episode; raises EpisodeError."""
        episode = self._episode
        question = Open(self._number, episode.environment.name, dict(episode.record.fields), episode.seed)
        opened = await self._ask(question, (Opened, Asked), grace_s=_IMPORTS_S)
        if isinstance(opened, Opened):
            self._observation = opened.observation
            prompt_tokens = episode_prompt(episode.record, opened, self._conversations, self._limits)
            self._branch = _Branch(prompt_tokens, None, opened.tools)
        else:
            assert isinstance(opened, Asked), "the link has checked it"
            require_conversation(episode.record, "agents need")
            self._asked, self._branch = opened, self._asked_branch(opened)
            if (most := self._most_tokens(self._branch)) < 1:
                raise EpisodeError(
                    f"its agent begins with {len(self._branch.prompt_tokens):,} tokens, which leaves {most:,} of "
                    "model.maxContextTokens"
                )
        self._branches.append(self._branch)

    def _turn_wanted(self) -> TurnWanted:
        branch = self._present
        limits = [self._most_tokens(branch)]
        for limit in (self._episode.environment.max_turn_tokens, self._asked.max_tokens if self._asked else None):
            if limit is not None:
                limits.append(len(branch.trajectory) + limit)
        return TurnWanted(
            self._episode.response,
            self._episode.number,
            len(self._turns),
            branch.prompt_tokens,
            branch.trajectory,
            min(limits),
            failures=self._episode.take_failures(),
        )

    @property
    def _present(self) -> _Branch:
        assert self._branch is not None, "the episode has begun"
        return self._branch

    def _most_tokens(self, branch: _Branch) -> int:
        """Return how many tokens the trajectory of a branch may have."""
        return min(self._limits.max_response_tokens, self._limits.max_context_tokens - len(branch.prompt_tokens))

    async def _take_turn(self, completion: Completion) -> bool | None:
        """Give a turn to the environment; return whether a limit of tokens ends the episode, None if it goes on."""
        branch, before = self._present, len(self._present.trajectory)
        tokens, text = completion.trajectory.tokens[before:], None
        if self._asked is not None and self._asked.stop:
            tokens, text = self._conversations.stopped(tokens, self._asked.stop)
        is_cut = completion.finish_reason is FinishReason.LENGTH and text is None
        branch.trajectory = completion.trajectory.first(before + len(tokens))
        turn = self._conversations.turn(tokens, branch.tools) if text is None else Turn(text)
        if self._asked is not None and any(call.error for call in turn.calls):
            turn = self._conversations.turn(tokens, ())  # Agents are told of text and whole calls alone.
        branch.messages.append(_message(turn))
        self._turns.append(_Turn(branch, len(branch.trajectory), len(branch.messages)))
        if is_cut and self._asked is None:
            return True  # The turn has no end, and nothing can follow it.
        act, num_calls = self._act(turn, tokens, is_cut=is_cut), max(1, len(turn.calls))
        answer = await self._ask(act, (Acted, Asked), num_calls=num_calls)
        if isinstance(answer, Asked):
            return None if self._go_on(answer) else True
        assert isinstance(answer, Acted), "the link has checked it"
        self._num_failed_calls += answer.num_failed_calls
        if not answer.observations:  # An agent may have cut its last turn off itself: nobody else has cut the episode.
            return is_cut and len(branch.trajectory) >= self._most_tokens(branch)
        return None if self._observe(self._turns[-1], answer.observations) else True

    def _act(self, turn: Turn, tokens: TokenIds, *, is_cut: bool) -> Act:
        calls = [ToolCall(call.name, dict(call.arguments), call.error) for call in turn.calls]
        num_prompt_tokens = len(self._present.prompt_tokens) + len(self._present.trajectory) - len(tokens)
        return Act(self._number, turn.content, calls, is_cut, num_prompt_tokens, len(tokens))

    def _go_on(self, asked: Asked) -> bool:
        """Go on with the conversation in which an agent asks; return whether there is room; raises EpisodeError."""
        self._asked = asked
        if asked.after is None:
            branch = self._asked_branch(asked)
            if self._most_tokens(branch) < 1:
                return False
            self._branches.append(branch)
            self._branch = branch
            return True
        if asked.after >= len(self._turns) or any(one.role == "assistant" for one in asked.messages):
            raise EpisodeError("its pod goes on from a turn that was not sampled", cause="pod")
        observations = [Observation(one.role, one.content, one.name) for one in asked.messages]
        return self._observe(self._turns[asked.after], observations)

    def _asked_branch(self, asked: Asked) -> _Branch:
        """Return the branch of a conversation that begins; raises EpisodeError."""
        messages = [one.message for one in asked.messages]
        texts = [f"{one.content}{''.join(str(call.arguments) for call in one.calls)}" for one in asked.messages]
        if _is_too_long("".join(texts), self._limits.max_context_tokens):
            raise EpisodeError("its agent sends a conversation that is longer than model.maxContextTokens allows")
        try:
            self._conversations.check(asked.tools)
            return _Branch(self._conversations.prompt(messages, None, asked.tools), messages, asked.tools)
        except UserError as error:  # What an agent asks later depends on what the model has said.
            raise EpisodeError(str(error), is_users_mistake=not self._turns) from error

    def _observe(self, turn: _Turn, observations: Sequence[Observation]) -> bool:
        """Add what the environment says after a turn, in a branch of its own if others follow; return whether it fits.

        Raises:
            EpisodeError: the chat template has no place for it.
        """
        branch = turn.branch
        messages = [one.message for one in observations]
        goes_on = len(branch.messages) == turn.num_messages
        num_left = self._most_tokens(branch) - turn.num_tokens if goes_on else self._limits.max_context_tokens
        if _is_too_long("".join(one.content for one in observations), num_left):
            return False  # Nor is it kept: a pod could fill the memory of the coordinator.
        if goes_on:
            branch.messages += messages
        observed = observed_tokens(observations, self._conversations, is_chat=bool(self._episode.record.messages))
        if (
            self._episode.record.messages
            and branch.trajectory.tokens[turn.num_tokens - 1] != self._conversations.end_token
        ):
            # Models have other end tokens, too, after which the template's is missing: it is observed, and not trained
            # on. So it is after a turn that was cut off.
            observed = joined(token_ids([self._conversations.end_token]), observed)
        if goes_on:
            if len(observed) >= num_left:
                return False
            branch.trajectory += Trajectory.observed(observed)
        else:
            branch = branch.begin_from(turn)
            branch.prompt_tokens = joined(branch.prompt_tokens, observed)
            branch.asked = (*(branch.asked or ()), *messages)
            if self._most_tokens(branch) < 1:
                return False
            self._branches.append(branch)
        self._branch = branch
        return True

    async def _end(self, *, is_cut: bool) -> None:
        finished = await self._ask(Finish(self._number, self._episode.wants_state), (Finished,))
        assert isinstance(finished, Finished), "the link has checked it"
        for number in sorted(set(finished.unread), reverse=True):
            self._drop_turn(number)
        if not self._turns:
            raise EpisodeError("its agent has read none of its turns; let its client wait longer for an answer")
        last = self._turns[-1].branch
        branches = [one for one in self._branches if one.trajectory.num_sampled_tokens and one is not last]
        over = Episode(
            branches=tuple(
                Branch(one.prompt_tokens, one.asked, one.messages, _up_to_last_turn(one.trajectory))
                for one in (*branches, last)
            ),
            observation=self._observation,
            reward=finished.reward,
            num_turns=len(self._turns),
            num_failed_calls=self._num_failed_calls,
            environment_s=self._episode.environment_s,
            num_restarts=self._episode.num_restarts,
            state=finished.state,
        )
        self._put(EpisodeOver(self._episode.response, self._episode.number, over, is_cut))

    def _drop_turn(self, number: int) -> None:
        """Drop a turn that was never read, so that it is not trained on; raises EpisodeError."""
        of_branch = [
            one for one in self._turns if number < len(self._turns) and one.branch is self._turns[number].branch
        ]
        if not of_branch or of_branch[-1] is not self._turns[number]:
            raise EpisodeError(
                "its pod names a turn as unread that was not sampled, or that others follow", cause="pod"
            )
        num_tokens, num_messages = of_branch[-2][1:] if len(of_branch) > 1 else (0, 0)
        branch = of_branch[-1].branch
        branch.trajectory, branch.messages = branch.trajectory.first(num_tokens), branch.messages[:num_messages]
        del self._turns[number]

    async def _ask(
        self, question: Question, kinds: tuple[type[Answer], ...], num_calls: int = 1, grace_s: float = _GRACE_S
    ) -> Answer:
        """Ask the environment, which may take its time for each of these calls; raises EpisodeError."""
        started_s = time.monotonic()
        try:
            limit_s = num_calls * self._episode.environment.call_timeout_s + grace_s
            return await self._link.ask(question, kinds, limit_s)
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
    if opened.tools:
        require_conversation(record, "the tools of an environment need")
    if not record.messages:
        return joined(record.prompt_tokens, conversations.text_delta(opened.observation or ""))
    try:
        conversations.check(opened.tools)
        return conversations.prompt(record.messages, opened.observation, opened.tools)
    except UserError as error:
        raise EpisodeError(str(error), is_users_mistake=True) from error


def require_conversation(record: PromptRecord, what: str) -> None:
    """Raise EpisodeError if the row is no conversation, which `what`, with its verb, asks for."""
    if not record.messages:
        reason = f"data.chat: {what} prompts that are conversations; set it to {{}}"
        raise EpisodeError(reason, is_users_mistake=True)


def observed_tokens(observations: Sequence[Observation], conversations: Conversations, *, is_chat: bool) -> TokenIds:
    """Return the tokens of what an environment says, up to the beginning of the next turn; raises EpisodeError."""
    if is_chat:
        try:
            return conversations.delta(observations)
        except UserError as error:  # The template has no place for what this environment says.
            raise EpisodeError(str(error)) from error
    return conversations.text_delta("".join(one.content for one in observations))


def _up_to_last_turn(trajectory: Trajectory) -> Trajectory:
    """Return a trajectory without what was observed after its last turn."""
    version, num_tokens = trajectory.runs[-1]
    return trajectory if version is not None else trajectory.first(len(trajectory) - num_tokens)


def _is_too_long(text: str, num_tokens: int) -> bool:
    """Return whether a text cannot fit into so many tokens: to find out by tokenizing would keep all others waiting."""
    return len(text) > max(_SHORT_TEXT, _MOST_CHARACTERS_PER_TOKEN * num_tokens)


def _message(turn: Turn) -> Message:
    calls = [{"type": "function", "function": {"name": one.name, "arguments": one.arguments}} for one in turn.calls]
    return {"role": "assistant", "content": turn.content, **({"tool_calls": calls} if calls else {})}
