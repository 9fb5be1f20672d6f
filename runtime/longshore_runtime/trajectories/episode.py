"""An episode: what a response that acted in an environment is besides its tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longshore.rounds.messages import EpisodeLength
from longshore_runtime.trajectories.trajectory import TokenIds, Trajectory

Message = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Branch:
    """A conversation of an episode, with its tokens: one that only grows, turn by turn.

    Agents have several where they shorten their history, ask again, or let others work for them. What another branch
    has trained on is part of the prompt of one that goes on from its middle.
    """

    prompt_tokens: TokenIds
    """Tokens before its first turn."""
    asked: Sequence[Message] | None
    """Conversation with which an agent has begun it; None: that of the row."""
    messages: Sequence[Message]
    """Conversation after the prompt: turns of the assistant, and what the environment said to each."""
    trajectory: Trajectory
    """Tokens of that, up to the end of the last turn."""


@dataclass(frozen=True, eq=False)
class Episode:
    """An episode that is over."""

    branches: tuple[Branch, ...]
    """Conversations, each with a sampled token at least; the last one has the last turn."""
    observation: str | None
    """What the environment said at its beginning: it ends the last message of the user; None: nothing."""
    reward: float | None
    """Reward that the environment gives; None: it gives none."""
    num_turns: int
    num_failed_calls: int
    """Calls of tools that do not exist, do not take these arguments, or raised."""
    environment_s: float
    """Time that the environment took, all of its attempts together."""
    num_restarts: int
    """Attempts that failed before this one."""
    state: str | None = None
    """Final state of the environment, as JSON; None: it tells none, or no reward function reads it."""

    @property
    def length(self) -> EpisodeLength:
        """Length of the episode, all branches together."""
        num_tokens = sum(len(one.trajectory) for one in self.branches)
        num_sampled = sum(one.trajectory.num_sampled_tokens for one in self.branches)
        return EpisodeLength(num_tokens, self.num_turns, self.environment_s, num_tokens - num_sampled)

    def begun(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the conversation before the first turn, from that of the row."""
        if (asked := self.branches[-1].asked) is not None:
            return asked
        return messages if self.observation is None else with_observation(messages, self.observation)

    @property
    def prompt_tokens(self) -> TokenIds:
        """Tokens before the first turn of the last branch: what the row, tools and environment said."""
        return self.branches[-1].prompt_tokens

    @property
    def messages(self) -> Sequence[Message]:
        """Conversation of the last branch after its prompt."""
        return self.branches[-1].messages

    @property
    def last_turn(self) -> str:
        """What the model said last."""
        return next(str(one["content"]) for one in reversed(self.messages) if one["role"] == "assistant")


def with_observation(messages: Sequence[Message], observation: str) -> tuple[Message, ...]:
    """Return messages with a text added to the last one of the user; raises ValueError if there is none."""
    place = max((number for number, one in enumerate(messages) if one["role"] == "user"), default=None)
    if place is None:
        raise ValueError("there is no message of the user")
    content = messages[place]["content"]
    added = [*content, {"type": "text", "text": observation}] if isinstance(content, list) else content + observation
    return (*messages[:place], {**messages[place], "content": added}, *messages[place + 1 :])
