"""Activity of every engine and trainer replica: intervals that cover the step without overlap. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from longshore.record.facts import LanePlace, RoundFacts, UpdatePasses
from longshore.record.history import RoundHistory, busy_spans
from longshore.record.model import LaneState

Span = tuple[LaneState, float, float]
"""A state, from when, until when."""
SHORTEST_S: Final = 1e-3
"""Shorter spans cannot be seen in a picture."""


def engine_spans(facts: RoundFacts, history: RoundHistory, engine: int) -> list[Span]:
    """Return the intervals of an engine. Later layers cover earlier ones."""
    marks = facts.marks
    spans: list[Span] = [(LaneState.IDLE, marks.begun_s, marks.published_s)]
    spans.append((LaneState.REGROUPING, marks.begun_s, marks.regrouped_s))
    spans += (
        (LaneState.SAMPLING, start_s, end_s)
        for start_s, end_s in busy_spans([stay for stay in history.stays if stay.engine == engine])
    )
    if facts.is_colocated:
        spans.append((LaneState.ASLEEP, marks.scored_s, marks.trained_s))
    if engine in history.retired_s and history.drained_s is not None:
        awake_s = marks.scored_s if facts.repurposed_s is None else facts.repurposed_s
        spans.append((LaneState.REPURPOSING, history.drained_s, awake_s))
        spans.append((LaneState.ASLEEP, awake_s, marks.trained_s))
    for absence in history.absences:
        if absence.engine == engine:
            spans.append((LaneState.LOST, absence.start_s, absence.end_s or marks.published_s))
    spans.append((LaneState.PUBLISHING, marks.trained_s, marks.published_s))
    return flattened(spans, marks.begun_s, marks.published_s)


def trainer_spans(
    facts: RoundFacts, history: RoundHistory, place: LanePlace, training: Mapping[int, Sequence[tuple[float, float]]]
) -> list[Span]:
    """Return the intervals of a replica; `training`: when each replica computes."""
    marks = facts.marks
    resting = LaneState.ASLEEP if facts.is_colocated else LaneState.IDLE
    spans: list[Span] = [(resting, marks.begun_s, marks.published_s)]
    pods = {pod for engine in facts.engines if engine.number in history.retired_s for pod in engine.pods}
    if facts.repurposed_s is not None and history.drained_s is not None and pods.issuperset(place.pods):
        spans.append((LaneState.REPURPOSING, history.drained_s, facts.repurposed_s))
        spans.append((LaneState.IDLE, facts.repurposed_s, marks.scored_s))
    spans.append((LaneState.IDLE, marks.scored_s, marks.trained_s))
    spans += ((LaneState.TRAINING, start_s, end_s) for start_s, end_s in training.get(place.number, ()))
    spans.append((LaneState.PUBLISHING, marks.trained_s, marks.published_s))
    return flattened(spans, marks.begun_s, marks.published_s)


def training_spans(updates: Iterable[UpdatePasses], num_replicas: int) -> dict[int, list[tuple[float, float]]]:
    """Return when each replica computes: its passes in turn, and each update after the passes of all replicas.

    Replicas report how long they computed, but not when, because their clocks differ from the driver's.
    """
    spans: dict[int, list[tuple[float, float]]] = {replica: [] for replica in range(num_replicas)}
    free_s = dict.fromkeys(range(num_replicas), float("-inf"))
    for update in updates:
        for one in update.passes:
            start_s = max(one.given_s, free_s[one.replica])
            free_s[one.replica] = start_s + one.compute_s
            spans[one.replica].append((start_s, free_s[one.replica]))
        together_s = max(free_s.values())
        if update.update_s > 0 and together_s > float("-inf"):
            for replica in range(num_replicas):
                spans[replica].append((together_s, together_s + update.update_s))
                free_s[replica] = together_s + update.update_s
    return spans


def flattened(layers: Sequence[Span], start_s: float, end_s: float) -> list[Span]:
    """Merge layers of spans, of which later ones cover earlier ones; adjacent equal spans become one."""
    cuts = sorted({start_s, end_s, *(min(max(at, start_s), end_s) for _, *ends in layers for at in ends)})
    # From the top: what is covered already stays as it is.
    states: list[LaneState | None] = [None] * (len(cuts) - 1)
    places = {at: place for place, at in enumerate(cuts)}
    free = _NextFree(len(states))
    for state, from_s, until_s in reversed(layers):
        if until_s - from_s < SHORTEST_S:
            continue
        first = places[min(max(from_s, start_s), end_s)]
        last = places[min(max(until_s, start_s), end_s)]
        for place in free.take(first, last):
            states[place] = state
    return _joined(cuts, states)


def _joined(cuts: Sequence[float], states: Sequence[LaneState | None]) -> list[Span]:
    spans: list[Span] = []
    for place, state in enumerate(states):
        assert state is not None, "the first layer covers everything"
        if spans and spans[-1][0] is state:
            spans[-1] = (state, spans[-1][1], cuts[place + 1])
        else:
            spans.append((state, cuts[place], cuts[place + 1]))
    return spans


class _NextFree:
    """Places of a row, each taken at most once. It finds each free place in a range in nearly constant time."""

    def __init__(self, num_places: int) -> None:
        self._next = list(range(num_places + 1))

    def take(self, first: int, last: int) -> Iterator[int]:
        """Take and yield the free places from `first` up to `last`."""
        place = self._find(first)
        while place < last:
            self._next[place] = place + 1
            yield place
            place = self._find(place)

    def _find(self, place: int) -> int:
        root = place
        while self._next[root] != root:
            root = self._next[root]
        while self._next[place] != root:
            self._next[place], place = root, self._next[place]
        return root
