"""Messages between a round and its driver: events report what happened, commands say what to do.

An event comes with its time by the driver's clock (`RoundProtocol.receive`). A command never waits: what it leads to
comes back as an event.

*Ended* means that a request left its engine, whatever the reason; *finished*, that it ended by itself. A response that
acts in an environment is an *episode*: what finishes on an engine is then one of its turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from longshore.policy.draws import Draw
from longshore.policy.engine_load import EngineLoad
from longshore.policy.progress import RoundProgress
from longshore.policy.round import AcceptedGroup, ResponseId


class EpisodeLength(NamedTuple):
    """Length of an episode that is over."""

    num_tokens: int
    """Tokens of all its turns, and of what the environment said."""
    num_turns: int
    environment_s: float
    """Time that its environment took, in seconds."""
    observed_tokens: int = 0
    """Tokens of what the environment said."""


ResponseLength = int | EpisodeLength
"""Length of a response: in tokens or, of an episode, in turns and time as well."""

# Events ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EndedRequest:
    """A request that left its engine."""

    response: ResponseId
    num_tokens: int
    """Response tokens so far, those of earlier engines and rounds included."""
    finished: bool
    """Whether the response reached its end; False: it was stopped."""
    engine_step: int
    """Step of the engine at which it ended: breaks ties, so that a round that is repeated decides alike."""


@dataclass(frozen=True)
class RequestsEnded:
    """Requests left an engine."""

    engine: int
    requests: Sequence[EndedRequest]
    load: EngineLoad
    """Load of the engine, by its own clock."""


@dataclass(frozen=True)
class EngineLost:
    """An engine is gone, with everything that ran on it."""

    engine: int
    reason: str


@dataclass(frozen=True)
class EngineJoined:
    """An engine is there (again), with the current weights."""

    engine: int


@dataclass(frozen=True)
class EnginesRetired:
    """These engines are wanted elsewhere for the rest of the round."""

    engines: tuple[int, ...]


@dataclass(frozen=True)
class GroupRewarded:
    """A group has its rewards."""

    draw: Draw
    zero_variance: bool
    """All are equal, so that its advantages are 0."""


@dataclass(frozen=True)
class RewardsFailed:
    """The rewards of a group could not be computed."""

    draw: Draw
    reason: str


@dataclass(frozen=True)
class EpisodeAnswered:
    """The environment of an episode has begun it, or answered its turn: the next turn can be sampled."""

    response: ResponseId


@dataclass(frozen=True)
class EpisodeEnded:
    """An episode is over: its response is finished."""

    response: ResponseId
    length: EpisodeLength
    engine_step: int
    """Step of the engine at which its last turn ended."""


@dataclass(frozen=True)
class EpisodeFailed:
    """The environment of an episode has failed for good."""

    response: ResponseId
    reason: str


RoundEvent = (
    RequestsEnded
    | EngineLost
    | EngineJoined
    | EnginesRetired
    | GroupRewarded
    | RewardsFailed
    | EpisodeAnswered
    | EpisodeEnded
    | EpisodeFailed
)

# Commands -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AddRequests:
    """Sample these responses on this engine; those that have tokens already continue from them."""

    engine: int
    responses: tuple[ResponseId, ...]


@dataclass(frozen=True)
class AbortRequests:
    """Stop these requests; each comes back in `RequestsEnded`, unless it is lost with its engine."""

    engine: int
    responses: tuple[ResponseId, ...]


@dataclass(frozen=True)
class StartEpisodes:
    """Begin these episodes in their environments; `EpisodeAnswered` follows, or another event of episodes."""

    responses: tuple[ResponseId, ...]


@dataclass(frozen=True)
class GiveTurns:
    """Give the turns that an engine has sampled to their environments; events of episodes follow."""

    responses: tuple[ResponseId, ...]


@dataclass(frozen=True)
class CancelEpisodes:
    """Nobody needs these episodes any more; no event follows."""

    responses: tuple[ResponseId, ...]


@dataclass(frozen=True)
class ReplaceEngine:
    """Start a lost engine again; `EngineJoined` follows."""

    engine: int


@dataclass(frozen=True)
class AnnounceEmptied:
    """Nothing runs any longer on the engines that have retired."""


@dataclass(frozen=True)
class OfferResponse:
    """A response finished: it can be scored ahead of its group."""

    response: ResponseId


@dataclass(frozen=True)
class ScoreGroup:
    """The rewards of this group are wanted; `GroupRewarded` or `RewardsFailed` follows."""

    group: AcceptedGroup


@dataclass(frozen=True)
class ForgetGroups:
    """The batch is complete without these groups: their rewards are of no use in this round."""

    draws: tuple[Draw, ...]


@dataclass(frozen=True)
class TrainOnGroup:
    """A group is accepted and has its rewards: the trainer may have it. Each group of the batch once."""

    group: AcceptedGroup


@dataclass(frozen=True)
class ReportProgress:
    """The round has begun, or responses have finished."""

    progress: RoundProgress


@dataclass(frozen=True)
class MeasureLoad:
    """A milestone: how full the engines are decides whether some of them retire. `EnginesRetired` may follow."""

    progress: RoundProgress


@dataclass(frozen=True)
class GiveUp:
    """The round would not end by its rules; a driver may continue it nevertheless."""

    reason: str
    is_users_mistake: bool


RoundCommand = (
    AddRequests
    | AbortRequests
    | StartEpisodes
    | GiveTurns
    | CancelEpisodes
    | ReplaceEngine
    | AnnounceEmptied
    | OfferResponse
    | ScoreGroup
    | ForgetGroups
    | TrainOnGroup
    | ReportProgress
    | MeasureLoad
    | GiveUp
)
