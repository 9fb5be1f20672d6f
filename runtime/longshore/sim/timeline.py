"""What every GPU did when, as rectangles on (time, GPU): the layout of a timeline, without a picture library."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from longshore.api.round_status import RoundKind
from longshore.sim.result import GpuSpan, SimResult, Work

_INSTANT_S: Final = 1e-6
"""Shorter gaps come from rounding."""


class Activity(StrEnum):
    """What a GPU does, or that it does nothing."""

    ROLLOUT = "rollout"
    TRAINER = "trainer"
    CHANGE = "switch, publish weights"
    BUBBLE = "bubble"


_ACTIVITIES: Final[Mapping[Work, Activity]] = {
    Work.ROLLOUT: Activity.ROLLOUT,
    Work.TRAINING: Activity.TRAINER,
    Work.SWITCH: Activity.CHANGE,
    Work.PUBLISH: Activity.CHANGE,
}


@dataclass(frozen=True)
class Rectangle:
    """GPUs side by side that do the same from the same time to the same time."""

    first_gpu: int
    num_gpus: int
    start_s: float
    end_s: float
    activity: Activity


@dataclass(frozen=True)
class RoundMark:
    """One step on the time axis."""

    kind: RoundKind
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """Rectangles that cover every GPU from the first second to the last, without overlap."""

    num_gpus: int
    end_s: float
    rectangles: tuple[Rectangle, ...]
    rounds: tuple[RoundMark, ...]


def timeline(result: SimResult, num_steps: int) -> Timeline:
    """Return the first steps of a result that kept its spans."""
    assert result.spans, "the simulation kept no spans"
    steps = result.steps[:num_steps]
    rounds = tuple(RoundMark(step.kind, step.start_s, step.start_s + step.step_s) for step in steps)
    end_s = rounds[-1].end_s
    pieces = list(_pieces(result.spans, result.num_gpus, end_s))
    return Timeline(result.num_gpus, end_s, tuple(_merged(pieces)), rounds)


@dataclass(frozen=True)
class _Piece:
    gpu: int
    start_s: float
    end_s: float
    activity: Activity


def _pieces(spans: Iterable[GpuSpan], num_gpus: int, end_s: float) -> Iterator[_Piece]:
    """Yield the spans of every GPU, and the gaps between them."""
    by_gpu: dict[int, list[GpuSpan]] = defaultdict(list)
    for span in spans:
        by_gpu[span.gpu].append(span)
    for gpu in range(num_gpus):
        free_s = 0.0
        for span in sorted(by_gpu[gpu], key=lambda span: span.start_s):
            if span.start_s >= end_s - _INSTANT_S:
                break
            if span.start_s - free_s > _INSTANT_S:
                yield _Piece(gpu, free_s, span.start_s, Activity.BUBBLE)
            free_s = min(span.end_s, end_s)
            yield _Piece(gpu, span.start_s, free_s, _ACTIVITIES[span.work])
        if end_s - free_s > _INSTANT_S:
            yield _Piece(gpu, free_s, end_s, Activity.BUBBLE)


def _merged(pieces: Sequence[_Piece]) -> Iterator[Rectangle]:
    """Merge equal pieces of neighbouring GPUs into one rectangle, in order of time, then GPU."""
    gpus: dict[tuple[float, float, Activity], list[int]] = defaultdict(list)
    for piece in pieces:
        gpus[piece.start_s, piece.end_s, piece.activity].append(piece.gpu)
    for (start_s, end_s, activity), numbers in sorted(gpus.items()):
        for first_gpu, count in _runs(numbers):
            yield Rectangle(first_gpu, count, start_s, end_s, activity)


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, how many) of every run of successive numbers; they rise."""
    first = 0
    for index in range(1, len(numbers) + 1):
        if index == len(numbers) or numbers[index] != numbers[index - 1] + 1:
            yield numbers[first], index - first
            first = index
