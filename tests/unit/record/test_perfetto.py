"""The trace of a job: what the trace event format asks for, in a bounded number of events."""

import itertools
import json
from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.record.build import round_record
from longshore.record.model import RoundRecord, StayEnd
from longshore.record.perfetto import trace
from tests.properties import examples
from tests.unit.policy.rounds import Job
from tests.unit.policy.test_round_policies import jobs
from tests.unit.record.facts import TAIL_BATCHING, played

Json = dict[str, Any]


def records(job: Job = TAIL_BATCHING, seed: int = 3, num_rounds: int = 3) -> list[RoundRecord]:
    return [round_record(one.facts) for one in played(job, seed, num_rounds)]


FIELDS = {
    "X": {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"},
    "C": {"ph", "name", "pid", "tid", "ts", "args"},
    "s": {"ph", "name", "cat", "pid", "tid", "ts", "id"},
    "f": {"ph", "name", "cat", "pid", "tid", "ts", "id", "bp"},
    "M": {"ph", "name", "pid", "tid", "args"},
}
METADATA = {
    "process_name": "name",
    "thread_name": "name",
    "process_sort_index": "sort_index",
    "thread_sort_index": "sort_index",
}


def assert_is_trace_event_format(events: list[Json]) -> None:
    """As the format's description has it: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU."""
    slices: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    counted: dict[tuple[int, str], list[int]] = defaultdict(list)
    flows: dict[int, list[Json]] = defaultdict(list)
    for event in events:
        assert event.keys() - {"cname"} == FIELDS[event["ph"]]
        assert isinstance(event["name"], str) and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        track = event["pid"], event["tid"]
        if event["ph"] != "M":
            assert isinstance(event["ts"], int) and event["ts"] >= 0, "readers take microseconds of the trace"
        match event["ph"]:
            case "X":
                assert isinstance(event["dur"], int) and event["dur"] >= 0
                slices[track].append((event["ts"], event["ts"] + event["dur"]))
            case "C":
                assert event["args"] and all(isinstance(value, int) and value >= 0 for value in event["args"].values())
                counted[event["pid"], event["name"]].append(event["ts"])
            case "s" | "f":
                assert isinstance(event["id"], int), "Perfetto drops the arrow otherwise"
                flows[event["id"]].append(event)
            case "M":
                assert list(event["args"]) == [METADATA[event["name"]]]
    for times in counted.values():
        assert times == sorted(set(times)), "a counter has one value at a time"
    for ends in flows.values():
        assert [event["ph"] for event in ends] == ["s", "f"], "an arrow lacks an end"
        start, finish = ends
        assert start["ts"] <= finish["ts"] and finish["bp"] == "e"
        for event in ends:
            # Readers drop an arrow whose end lies in no slice.
            assert any(left <= event["ts"] <= right for left, right in slices[event["pid"], event["tid"]])


@settings(max_examples=examples(30), deadline=None)
@given(jobs(), st.integers(0, 2**32))
def test_a_trace_is_in_the_trace_event_format_and_tracks_do_not_overlap(job: Job, seed: int) -> None:
    found = records(job, seed, 2)
    file = json.loads(json.dumps(trace(found).as_json("demo")))
    events = file["traceEvents"]
    assert_is_trace_event_format(events)
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    shown = [event for event in events if event["ph"] == "X" and event["cat"] in set(StayEnd)]
    assert len(shown) == sum(len(record.requests) for record in found)
    running = [event["args"]["running"] for event in events if event["ph"] == "C"]
    assert running.count(0) >= 1 and running[-1] == 0, "what began ends"


def test_every_process_and_track_has_a_name() -> None:
    events = trace(records()).events
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"} <= named
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names[:3] == ["job", "worker 0", "worker 1"]
    assert names[3] == "responses, engine 0 of worker 0"


def test_of_too_many_events_the_responses_of_the_oldest_rounds_are_left_out() -> None:
    found = records()
    whole = trace(found)
    assert whole.without_responses == ()
    cut = trace(found, max_events=len(whole.events) - 20)
    assert cut.without_responses and cut.without_responses[0] == 1 and 3 not in cut.without_responses
    assert len(cut.events) <= len(whole.events) - 20
    steps = {event["args"]["step"] for event in cut.events if event.get("cat") == "phase"}
    assert steps == {1, 2, 3}, "phases are always there"
    assert trace(found, max_events=0).without_responses == (1, 2, 3)
