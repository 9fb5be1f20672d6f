"""What the driver hears of episodes."""

from dataclasses import dataclass, field

from longshore.policy.round import ResponseId
from longshore_runtime.environments.pod_protocol import FailureCause
from longshore_runtime.trajectories.episode import Episode
from longshore_runtime.trajectories.trajectory import TokenIds, Trajectory


@dataclass(frozen=True)
class EpisodeNews:
    """Something about an episode; its number tells it from others of the same response."""

    response: ResponseId
    number: int
    failures: tuple[FailureCause, ...] = field(default=(), kw_only=True)
    """Causes of the attempts that failed since the news before."""


@dataclass(frozen=True, eq=False)
class TurnWanted(EpisodeNews):
    """The next turn can be sampled: the episode has begun, perhaps anew, or its environment has answered a turn."""

    turn: int
    """Number of the turn. At 0, the episode begins, and what was sampled for it before is void."""
    prompt_tokens: TokenIds
    trajectory: Trajectory
    """What the turn goes on from: turns and observations after the prompt."""
    max_tokens: int
    """Limit of the trajectory with the turn."""


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
