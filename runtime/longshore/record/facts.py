"""Input of the record of a round: values that the training loop has at the end of a step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from longshore.api.names import Component
from longshore.policy.round import ResponseId
from longshore.record.history import TimedMessage
from longshore.rounds.protocol import RoundTotals


@dataclass(frozen=True)
class StepMarks:
    """When the parts of a step began and ended, by the driver's clock."""

    begun_s: float
    regrouped_s: float
    started_s: float
    """Start of the round that was trained on: later where others were refused before it."""
    sampled_s: float
    """When the batch was complete."""
    scored_s: float
    """When it had all its rewards."""
    trained_s: float
    published_s: float


@dataclass(frozen=True)
class LanePlace:
    """Where an engine or a trainer replica runs."""

    number: int
    pods: tuple[int, ...]
    component: Component
    gpus: tuple[int, ...]
    """GPUs in each of these pods."""


@dataclass(frozen=True)
class TrainerPass:
    """Work of one replica, which computes its passes one after the other."""

    replica: int
    given_s: float
    """By the driver's clock."""
    compute_s: float


@dataclass(frozen=True)
class UpdatePasses:
    """An optimizer step: passes over parts of the batch, and then the update of all replicas together."""

    passes: tuple[TrainerPass, ...]
    update_s: float


@dataclass(frozen=True)
class RoundFacts:
    """What the record of a round is built from, once its step is finished."""

    step: int
    attempt: int
    started: float
    """Unix time of `marks.begun_s`."""
    marks: StepMarks
    totals: RoundTotals
    messages: Sequence[TimedMessage]
    """Messages of the round, in their order."""
    rewards: Mapping[ResponseId, float]
    """Rewards of the groups that were accepted or left out."""
    prompt_of: Mapping[int, int]
    """Row of the data by index of the draw, where it is another number."""
    max_response_tokens: int
    bubble_share: float
    num_preemptions: int
    queue_length: int
    engines: tuple[LanePlace, ...]
    trainers: tuple[LanePlace, ...]
    updates: tuple[UpdatePasses, ...]
    repurposed_s: float | None
    """When the trainers of repurposed pods were awake."""
    is_colocated: bool
