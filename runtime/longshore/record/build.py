"""Build the record of a round from the facts of its step. Pure; runs after the step, in a separate thread."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.record.facts import LanePlace, RoundFacts, StepMarks
from longshore.record.history import EngineStay, RoundHistory, history
from longshore.record.lanes import SHORTEST_S, Span, engine_spans, trainer_spans, training_spans
from longshore.record.model import (
    GroupRow,
    Interval,
    Lane,
    LaneKind,
    PhaseName,
    RecordOutcome,
    ResponseRow,
    RoundRecord,
    Stay,
    StayEnd,
    StepPhase,
)

_DIGITS: Final = 4
"""Digits of a time in seconds; the driver hears of events a few milliseconds late anyway."""


def round_record(facts: RoundFacts) -> RoundRecord:
    """Build the record of a round."""
    found = history(facts.messages)
    outcomes = Outcomes(facts)
    lanes = tuple(_lanes(facts))
    return RoundRecord(
        step=facts.step,
        attempt=facts.attempt,
        kind=facts.totals.end.kind,
        started=facts.started,
        duration_s=round(facts.marks.published_s - facts.marks.begun_s, _DIGITS),
        bubble_share=round(facts.bubble_share, _DIGITS),
        num_preemptions=facts.num_preemptions,
        queue_length=facts.queue_length,
        phases=tuple(_phases(facts.marks)),
        lanes=lanes,
        intervals=tuple(_intervals(facts, found, lanes)),
        requests=tuple(_stay(stay, facts.marks.begun_s) for stay in found.stays),
        responses=tuple(_responses(facts, found, outcomes)),
        groups=tuple(_groups(facts, found, outcomes)),
    )


class Outcomes:
    """Outcomes of the draws and responses of a round."""

    def __init__(self, facts: RoundFacts) -> None:
        end = facts.totals.end
        self._of_draw: dict[Draw, RecordOutcome] = {
            **dict.fromkeys(end.deferred, RecordOutcome.DEFERRED),
            **dict.fromkeys(facts.totals.rejected, RecordOutcome.REJECTED),
            **dict.fromkeys(end.zero_variance, RecordOutcome.ZERO_VARIANCE),
            **{group.draw: RecordOutcome.ACCEPTED for group in end.accepted},
        }
        self._rewards: Mapping[ResponseId, float] = facts.rewards
        self._kept = frozenset(end.kept)

    def of_draw(self, draw: Draw) -> RecordOutcome:
        """Return the outcome of a group."""
        return self._of_draw.get(draw, RecordOutcome.UNUSED)

    def of_response(self, response: ResponseId) -> RecordOutcome:
        """Return the outcome of a response; a group that is trained on need not use all of its responses."""
        if response in self._kept:
            return RecordOutcome.KEPT
        outcome = self.of_draw(response.draw)
        is_scored = outcome in (RecordOutcome.ACCEPTED, RecordOutcome.ZERO_VARIANCE)
        return RecordOutcome.UNUSED if is_scored and response not in self._rewards else outcome


def engine_seconds(stays: Iterable[EngineStay]) -> dict[ResponseId, float]:
    """Return the seconds that responses were on engines."""
    seconds: dict[ResponseId, float] = {}
    for stay in stays:
        seconds[stay.response] = seconds.get(stay.response, 0.0) + stay.end_s - stay.start_s
    return seconds


def _phases(marks: StepMarks) -> Iterator[StepPhase]:
    ends = (
        (PhaseName.REGROUP, marks.regrouped_s),
        (PhaseName.REFUSED, marks.started_s),
        (PhaseName.ROLLOUT, marks.sampled_s),
        (PhaseName.REWARD, marks.scored_s),
        (PhaseName.TRAIN, marks.trained_s),
        (PhaseName.PUBLISH, marks.published_s),
    )
    start = 0.0
    for name, end_s in ends:
        end = _since(end_s, marks.begun_s)
        # A skipped phase has almost no length; add it to the next one.
        if end - start >= SHORTEST_S:
            yield StepPhase(name=name, start_s=start, end_s=end)
            start = end


def _lanes(facts: RoundFacts) -> Iterator[Lane]:
    kinds = ((LaneKind.ENGINE, facts.engines), (LaneKind.TRAINER, facts.trainers))
    places = ((kind, place) for kind, places in kinds for place in places)
    for number, (kind, place) in enumerate(places):
        yield Lane(lane=number, kind=kind, **vars(place))


def _intervals(facts: RoundFacts, found: RoundHistory, lanes: Iterable[Lane]) -> Iterator[Interval]:
    training = training_spans(facts.updates, len(facts.trainers))
    for lane in lanes:
        if lane.kind is LaneKind.ENGINE:
            spans = engine_spans(facts, found, lane.number)
        else:
            place = LanePlace(lane.number, lane.pods, lane.component, lane.gpus)
            spans = trainer_spans(facts, found, place, training)
        yield from (_interval(lane.lane, span, facts.marks.begun_s) for span in spans)


def _interval(lane: int, span: Span, begun_s: float) -> Interval:
    state, start_s, end_s = span
    return Interval(lane=lane, state=state, start_s=_since(start_s, begun_s), end_s=_since(end_s, begun_s))


def _stay(stay: EngineStay, begun_s: float) -> Stay:
    return Stay(
        response=str(stay.response),
        engine=stay.engine,
        start_s=_since(stay.start_s, begun_s),
        end_s=_since(stay.end_s, begun_s),
        tokens=stay.num_tokens,
        end=stay.end,
        environment_s=round(stay.environment_s, _DIGITS),
    )


def _responses(facts: RoundFacts, found: RoundHistory, outcomes: Outcomes) -> Iterator[ResponseRow]:
    last = {stay.response: stay for stay in found.stays}
    seconds = engine_seconds(found.stays)
    for response in sorted(last):
        stay, episode = last[response], found.episodes.get(response)
        yield ResponseRow(
            response=str(response),
            prompt=facts.prompt_of.get(response.draw.index, response.draw.index),
            tokens=episode.num_tokens if episode else stay.num_tokens,
            finish=_finish(stay, facts.max_response_tokens),
            outcome=outcomes.of_response(response),
            reward=facts.rewards.get(response),
            engine_s=round(seconds[response], _DIGITS),
            turns=episode.num_turns if episode else 0,
            observed_tokens=episode.observed_tokens if episode else 0,
            environment_s=round(episode.environment_s if episode else found.environment_s.get(response, 0.0), _DIGITS),
        )


def _finish(stay: EngineStay, max_response_tokens: int) -> Literal["stop", "length", "abort"]:
    if stay.end is not StayEnd.FINISHED:
        return "abort"
    return "length" if stay.num_tokens >= max_response_tokens else "stop"


def _groups(facts: RoundFacts, found: RoundHistory, outcomes: Outcomes) -> Iterator[GroupRow]:
    begun_s = facts.marks.begun_s
    started = Counter(response.draw for response in {stay.response for stay in found.stays})
    for draw in sorted(started):
        scored_s, trainable_s = found.scored_s.get(draw), found.trainable_s.get(draw)
        yield GroupRow(
            draw=str(draw),
            outcome=outcomes.of_draw(draw),
            responses=started[draw],
            scored_s=None if scored_s is None else _since(scored_s, begun_s),
            accepted_s=None if trainable_s is None else _since(trainable_s, begun_s),
        )


def _since(at_s: float, begun_s: float) -> float:
    return round(at_s - begun_s, _DIGITS)
