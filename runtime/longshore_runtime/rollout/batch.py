"""What a round gives to training."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.policy.round_policy import RoundEnd
from longshore.policy.selection_bias import SelectionBias
from longshore_runtime.types import Completion


@dataclass(frozen=True)
class ScoredResponse:
    """An accepted response with its reward."""

    response: ResponseId
    completion: Completion
    reward: float
    timed_out: bool
    parts: Mapping[str, float] = field(default_factory=dict)
    """What each reward function gave, unweighted."""


@dataclass(frozen=True)
class ScoredGroup:
    """An accepted group: R0 scored responses of one draw, in the order in which they finished."""

    draw: Draw
    responses: tuple[ScoredResponse, ...]
    domain: str = ""
    """Of its prompt."""


@dataclass
class RewardStats:
    """What scoring did in one round."""

    max_depth: int = 0
    """Most responses that waited at once."""
    max_wait_s: float = 0.0
    """Longest wait of a response that its group waited for."""
    num_faults: int = 0
    num_broken: int = 0
    """Programs that broke their sandbox."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time that workers spent, by function."""
    num_scored: dict[str, int] = field(default_factory=dict)
    """Responses, by function."""


@dataclass(frozen=True)
class RoundResult:
    """A finished round."""

    end: RoundEnd
    groups: tuple[ScoredGroup, ...]
    """One per accepted draw, ordered by draw, so that arrival order does not reach the trainer."""
    kept: Mapping[ResponseId, Completion]
    """Tokens that later rounds continue from."""
    rejected: Mapping[Draw, str]
    """Draws replaced because their reward could not be computed, and why."""
    dropped: tuple[ScoredGroup, ...]
    """Groups that dynamic sampling left out because all their rewards are equal."""
    selection: SelectionBias
    """How what was accepted differs from what was sampled."""
    rewards: RewardStats
    finished_tokens: tuple[int, ...]
    """Lengths of the responses that ended by themselves, accepted or not."""
    num_launched: int
    num_aborted: int
    """Launched responses that were cut off."""
    num_moved: int
    """Responses that went on on another engine, by recomputation."""
    rollout_s: float
    busy_share: float
    """Share of engine time spent in steps during the rollout."""
    num_preemptions: int
    num_steps: int
    """Decode steps of the engine that took most: the length of the rollout where a step's time is constant."""
    num_sampled_tokens: int
    """All tokens that engines sampled in this round, those that were dropped included."""
