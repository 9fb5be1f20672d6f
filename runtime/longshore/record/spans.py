"""Describe a round as spans of distributed tracing: the step, its phases, and its responses. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from longshore.record.model import PhaseName, RoundRecord, StayEnd

Value = str | int | float | bool
MAX_RESPONSES: Final = 2_000
"""Most responses of a round that have spans: the longest, since they are what a round waits for."""


@dataclass(frozen=True)
class Span:
    """A span; times are Unix times in seconds."""

    name: str
    start: float
    end: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    children: "tuple[Span, ...]" = ()


def step_span(record: RoundRecord, max_responses: int = MAX_RESPONSES) -> Span:
    """Build the span of a step, with its phases, and its responses below the rollout."""
    responses = tuple(_responses(record, max_responses))
    phases = tuple(
        Span(
            phase.name.value,
            record.started + phase.start_s,
            record.started + phase.end_s,
            children=responses if phase.name is PhaseName.ROLLOUT else (),
        )
        for phase in record.phases
    )
    attributes: dict[str, Value] = {
        "longshore.step": record.step,
        "longshore.attempt": record.attempt,
        "longshore.round.kind": record.kind.value,
        "longshore.round.bubble_share": record.bubble_share,
        "longshore.round.preemptions": record.num_preemptions,
        "longshore.round.responses": len(record.responses),
        "longshore.round.queue_length": record.queue_length,
    }
    return Span("step", record.started, record.started + record.duration_s, attributes, phases)


def _responses(record: RoundRecord, max_responses: int) -> Iterator[Span]:
    starts: dict[str, float] = {}
    ends: dict[str, float] = {}
    moves: dict[str, int] = {}
    engines: dict[str, int] = {}
    for stay in record.requests:
        starts[stay.response] = min(stay.start_s, starts.get(stay.response, stay.start_s))
        ends[stay.response] = max(stay.end_s, ends.get(stay.response, stay.end_s))
        moves[stay.response] = moves.get(stay.response, 0) + (stay.end is StayEnd.MOVED)
        engines[stay.response] = stay.engine
    longest = sorted(record.responses, key=lambda row: starts[row.response] - ends[row.response])[:max_responses]
    for row in sorted(longest, key=lambda row: starts[row.response]):
        attributes: dict[str, Value] = {
            "longshore.response": row.response,
            "longshore.prompt": row.prompt,
            "longshore.engine": engines[row.response],
            "longshore.response.tokens": row.tokens,
            "longshore.response.outcome": row.outcome.value,
            "longshore.response.finish": row.finish,
            "longshore.response.moves": moves[row.response],
        }
        if row.environment_s:
            attributes["longshore.response.environment_s"] = row.environment_s
        if row.reward is not None:
            attributes["longshore.response.reward"] = row.reward
        yield Span("response", record.started + starts[row.response], record.started + ends[row.response], attributes)
