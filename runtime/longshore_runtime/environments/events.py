"""What the driver hears of episodes."""

from dataclasses import dataclass

from longshore.policy.round import ResponseId
from longshore_runtime.trajectories.episode import Episode
from longshore_runtime.trajectories.trajectory import TokenIds


@dataclass(frozen=True)
class EpisodeNews:
    """Something about an episode; its number tells it from others of the same response."""

    response: ResponseId
    number: int


@dataclass(frozen=True, eq=False)
class EpisodeBegun(EpisodeNews):
    """The environment has begun the episode, for the first time or anew: what was sampled for it before is void."""

    prompt_tokens: TokenIds


@dataclass(frozen=True, eq=False)
class TurnAnswered(EpisodeNews):
    """The environment has answered a turn."""

    tokens: TokenIds
    """What the model reads after its turn, up to the beginning of its next one."""


@dataclass(frozen=True, eq=False)
class EpisodeOver(EpisodeNews):
    """The episode has ended."""

    episode: Episode
    is_cut: bool
    """Whether a limit of tokens has ended it."""


@dataclass(frozen=True)
class EpisodeGivenUp(EpisodeNews):
    """All attempts at the episode have failed."""

    reason: str
    is_users_mistake: bool
    """Whether every other episode of the environment would fail alike."""
