"""An episode: what a response that acted in an environment is besides its tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longshore_runtime.trajectories.trajectory import TokenIds

Message = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Episode:
    """An episode that is over."""

    prompt_tokens: TokenIds
    """Tokens before the first turn: the prompt of the row, tools, and what the environment said at its beginning."""
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

    @property
    def last_turn(self) -> str:
        """What the model said last."""
        return next(str(one["content"]) for one in reversed(self.messages) if one["role"] == "assistant")
