"""An episode: what a response that acted in an environment is besides its tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longshore.rounds.messages import EpisodeLength
from longshore_runtime.trajectories.trajectory import TokenIds, Trajectory

Message = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Episode:
    """An episode that is over."""

    prompt_tokens: TokenIds
    """Tokens before the first turn: the prompt of the row, tools, and what the environment said at its beginning."""
    observation: str | None
    """What the environment said at its beginning: it ends the last message of the user; None: nothing."""
    messages: Sequence[Message]
    """Conversation after the prompt: turns of the assistant, and what the environment said to each."""
    reward: float | None
    """Reward that the environment gives; None: it gives none."""
    num_turns: int
    num_failed_calls: int
    """Calls of tools that do not exist, do not take these arguments, or raised."""
    environment_s: float
    """Time that the environment took, all of its attempts together."""
    num_restarts: int
    """Attempts that failed before this one."""

    def length_of(self, trajectory: Trajectory) -> EpisodeLength:
        """Return the length of the episode, of which these are the tokens."""
        num_tokens = len(trajectory)
        return EpisodeLength(num_tokens, self.num_turns, self.environment_s, num_tokens - trajectory.num_sampled_tokens)

    def begun(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the conversation of a prompt with what the environment said at its beginning."""
        return messages if self.observation is None else with_observation(messages, self.observation)

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
