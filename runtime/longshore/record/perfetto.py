"""Records of rounds as a trace in Chrome's trace event format, which Perfetto and chrome://tracing open. Pure.

Processes: the job with its phases, one per pod with a track per GPU, and one per engine with its responses in as few
tracks as show them without overlap.
"""

import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from longshore.api.names import Component
from longshore.record.model import LaneKind, ResponseRow, RoundRecord, Stay, StayEnd
from longshore.record.timeline import GpuLane, gpu_lanes

TraceEvent = dict[str, Any]
MAX_EVENTS: Final = 1_000_000
"""Most events of a trace: Perfetto opens this many, about 200 MB of JSON, within seconds."""
_JOB: Final = 1
_FIRST_POD: Final = 1_000
_FIRST_ENGINE: Final = 100_000
_MAX_MOVES: Final = 1 << 24
"""Most moves of a round: arrows of different rounds have different identities."""
_COLOURS: Final = {
    "sampling": "good",
    "training": "thread_state_runnable",
    "asleep": "grey",
    "idle": "bad",
    "lost": "terrible",
}
"""Names of Chrome's palette; Perfetto chooses its own."""


@dataclass(frozen=True)
class PerfettoTrace:
    """A trace, and how much was left out of it."""

    events: tuple[TraceEvent, ...]
    without_responses: tuple[int, ...]
    """Steps of which only phases and lanes are there, so that the trace stays small enough to be opened."""

    def as_json(self, job: str) -> dict[str, Any]:
        """Return the whole file."""
        return {"traceEvents": list(self.events), "displayTimeUnit": "ms", "otherData": {"job": job}}


def trace(records: Sequence[RoundRecord], max_events: int = MAX_EVENTS) -> PerfettoTrace:
    """Build the trace of these rounds; if it has too many events, responses of the oldest rounds are left out."""
    origin = min((record.started for record in records), default=0.0)
    names = _Names()
    events = [event for record in records for event in _step(record, origin, names)]
    shown: list[list[TraceEvent]] = []
    left_out: list[int] = []
    for record in reversed(records):
        if not left_out:
            with_these = names.copy()
            of_responses = list(_responses(record, origin, with_these))
            num_events = len(events) + sum(map(len, shown)) + len(of_responses) + with_these.num_events
            if num_events <= max_events:
                names = with_these
                shown.append(of_responses)
                continue
        left_out.append(record.step)
    everything = [*names.events(), *events, *(event for group in reversed(shown) for event in group)]
    return PerfettoTrace(tuple(everything), tuple(reversed(left_out)))


class _Names:
    """Names of processes and threads; each is written once."""

    def __init__(self) -> None:
        self._processes: dict[int, str] = {}
        self._threads: dict[tuple[int, int], str] = {}

    def copy(self) -> "_Names":
        """Return a copy, to which names can be added."""
        other = _Names()
        other._processes, other._threads = dict(self._processes), dict(self._threads)
        return other

    @property
    def num_events(self) -> int:
        return 2 * (len(self._processes) + len(self._threads))

    def process(self, process: int, name: str) -> int:
        self._processes[process] = name
        return process

    def thread(self, process: int, thread: int, name: str) -> int:
        self._threads[process, thread] = name
        return thread

    def events(self) -> Iterator[TraceEvent]:
        for process, name in sorted(self._processes.items()):
            yield _metadata("process_name", process, 0, {"name": name})
            yield _metadata("process_sort_index", process, 0, {"sort_index": process})
        for (process, thread), name in sorted(self._threads.items()):
            yield _metadata("thread_name", process, thread, {"name": name})
            yield _metadata("thread_sort_index", process, thread, {"sort_index": thread})


def _metadata(name: str, process: int, thread: int, arguments: Mapping[str, Any]) -> TraceEvent:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": dict(arguments)}


def _slice(
    name: str, category: str, track: tuple[int, int], span: tuple[float, float], arguments: Mapping[str, Any]
) -> TraceEvent:
    """Build an event; `span` is in seconds since the origin of the trace."""
    start_s, end_s = span
    process, thread = track
    event: TraceEvent = {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": thread,
        "ts": _microseconds(start_s),
        "dur": max(0, _microseconds(end_s) - _microseconds(start_s)),
        "args": dict(arguments),
    }
    if name in _COLOURS:
        event["cname"] = _COLOURS[name]
    return event


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def _step(record: RoundRecord, origin: float, names: _Names) -> Iterator[TraceEvent]:
    """Yield the events of a step, its phases, and its GPUs."""
    offset = record.started - origin
    names.process(_JOB, "job")
    steps, phases = names.thread(_JOB, 1, "steps"), names.thread(_JOB, 2, "phases")
    arguments = {
        "kind": record.kind.value,
        "attempt": record.attempt,
        "bubbleShare": record.bubble_share,
        "preemptions": record.num_preemptions,
        "longPromptQueue": record.queue_length,
        "responses": len(record.responses),
    }
    span = (offset, offset + record.duration_s)
    yield _slice(f"step {record.step}, {record.kind.value}", "step", (_JOB, steps), span, arguments)
    for phase in record.phases:
        span = (offset + phase.start_s, offset + phase.end_s)
        yield _slice(phase.name.value, "phase", (_JOB, phases), span, {"step": record.step})
    for lane in gpu_lanes(record):
        yield from _lane(lane, record.step, offset, names)


def _lane(lane: GpuLane, step: int, offset: float, names: _Names) -> Iterator[TraceEvent]:
    component = lane.lanes[0].component
    process = _FIRST_POD + 2 * lane.pods[0] + (component is Component.TRAINER)
    names.process(process, lane.name.partition(", ")[0])
    # A name keeps its track: after a regroup other engines have these GPUs.
    thread = lane.gpus[0] if lane.gpus else min(one.number for one in lane.lanes)
    names.thread(process, thread, lane.name.partition(", ")[2])
    for state, start_s, end_s in lane.spans:
        yield _slice(state.value, "gpu", (process, thread), (offset + start_s, offset + end_s), {"step": step})


def _responses(record: RoundRecord, origin: float, names: _Names) -> Iterator[TraceEvent]:
    """Yield the stays of responses on engines, arrows between engines, and the number of running responses."""
    offset = record.started - origin
    rows = {row.response: row for row in record.responses}
    pods = {lane.number: lane.pods[0] for lane in record.lanes if lane.kind is LaneKind.ENGINE}
    drawn: list[tuple[Stay, tuple[int, int]]] = []
    for engine, stays in sorted(_by_engine(record.requests).items()):
        where = f"engine {engine}" + (f" of worker {pods[engine]}" if engine in pods else "")
        process = names.process(_FIRST_ENGINE + engine, f"responses, {where}")
        for track, stay in _packed(stays):
            # Thread 0 has the counter.
            place = (process, names.thread(process, track + 1, f"track {track + 1}"))
            span = (offset + stay.start_s, offset + stay.end_s)
            yield _slice(stay.response, stay.end.value, place, span, _arguments(stay, rows, record.step))
            drawn.append((stay, place))
        yield from _running(stays, process, offset)
    yield from _moves(drawn, record.step, offset)


def _moves(drawn: Iterable[tuple[Stay, tuple[int, int]]], step: int, offset: float) -> Iterator[TraceEvent]:
    """Yield arrows from stays that ended with a move to the ones that followed."""
    left: dict[str, TraceEvent] = {}
    identities = itertools.count(step * _MAX_MOVES)  # Perfetto drops arrows whose identity is no number.
    for stay, (process, thread) in sorted(drawn, key=lambda one: one[0].start_s):
        here = {"cat": "move", "name": "move", "pid": process, "tid": thread}
        if stay.response in left:
            start = left.pop(stay.response)
            yield start
            at = max(_microseconds(offset + stay.start_s), start["ts"])
            yield {**here, "ph": "f", "bp": "e", "id": start["id"], "ts": at}
        if stay.end is StayEnd.MOVED:
            at = max(_microseconds(offset + stay.start_s), _microseconds(offset + stay.end_s) - 1)
            # An arrow begins inside of its slice.
            left[stay.response] = {**here, "ph": "s", "id": next(identities), "ts": at}


def _by_engine(stays: Iterable[Stay]) -> dict[int, list[Stay]]:
    found: dict[int, list[Stay]] = {}
    for stay in stays:
        found.setdefault(stay.engine, []).append(stay)
    return found


def _packed(stays: Iterable[Stay]) -> Iterator[tuple[int, Stay]]:
    """Yield each stay with the first track that is free at its start."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for stay in sorted(stays, key=lambda stay: (stay.start_s, stay.end_s)):
        while busy and busy[0][0] <= stay.start_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        track = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (stay.end_s, track))
        yield track, stay


def _arguments(stay: Stay, rows: Mapping[str, ResponseRow], step: int) -> dict[str, Any]:
    row = rows.get(stay.response)
    arguments: dict[str, Any] = {"step": step, "tokens": stay.tokens, "end": stay.end.value}
    if stay.environment_s:
        arguments["environmentS"] = stay.environment_s
    if row is not None:
        arguments |= {"prompt": row.prompt, "outcome": row.outcome.value, "reward": row.reward}
    return arguments


def _running(stays: Sequence[Stay], process: int, offset: float) -> Iterator[TraceEvent]:
    """Return the number of responses on an engine, at every change."""
    changes: dict[int, int] = {}
    for stay in stays:
        for at_s, change in ((stay.start_s, 1), (stay.end_s, -1)):
            at = _microseconds(offset + at_s)
            changes[at] = changes.get(at, 0) + change
    running = 0
    for at, change in sorted(changes.items()):
        running += change
        yield {"ph": "C", "name": "responses", "pid": process, "tid": 0, "ts": at, "args": {"running": running}}
