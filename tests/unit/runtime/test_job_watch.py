"""The coordinator hears of every assignment, whatever the API server sends in between."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client
from urllib3.exceptions import ProtocolError

from longshore_runtime.elastic import job_watch
from longshore_runtime.elastic.job_watch import JobWatch
from longshore_runtime.rollout.events import AssignmentChanged, Event

LIMIT_S = 30.0
"""Longer than anything here takes."""

Script = list[list[dict[str, Any] | Exception]]


def job(epoch: int, kind: str = "MODIFIED") -> dict[str, Any]:
    return {"type": kind, "object": {"status": {"assignment": {"epoch": epoch}}}}


class ScriptedWatch:
    """Stands for `kubernetes.watch.Watch`: one list of events or errors per stream, then silence."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._stopped = threading.Event()

    def stream(self, *_: object, **__: object) -> Iterator[dict[str, Any]]:
        if not self._script:
            self._stopped.wait(LIMIT_S)
            return
        for item in self._script.pop(0):
            if isinstance(item, Exception):
                raise item
            yield item

    def stop(self) -> None:
        self._stopped.set()


def epochs(patch: pytest.MonkeyPatch, script: Script, count: int) -> list[int]:
    """What the driver hears, in its order."""
    patch.setattr(job_watch, "load_credentials", lambda: None)
    patch.setattr(job_watch.watch, "Watch", lambda: ScriptedWatch(script))
    patch.setattr(job_watch, "_FIRST_RETRY_S", 0.0)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    watched = JobWatch("team", "demo", events)
    try:
        heard = [events.get(timeout=LIMIT_S) for _ in range(count)]
    finally:
        watched.close()
    assert events.empty()
    assert watched.newest().epoch == max(
        event.assignment.epoch for event in heard if isinstance(event, AssignmentChanged)
    )
    return [event.assignment.epoch for event in heard if isinstance(event, AssignmentChanged)]


def test_every_epoch_is_heard_once_over_any_number_of_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    script: Script = [[job(1, "ADDED"), job(1), job(2)], [job(2, "ADDED"), job(1), job(3)]]
    assert epochs(monkeypatch, script, 3) == [1, 2, 3]


@pytest.mark.parametrize(
    "broken",
    [
        client.ApiException(status=410, reason="Gone"),
        ProtocolError("connection broken"),
        ValueError("half a line of JSON"),
        {"type": "MODIFIED", "object": {"status": None}},
        {"kind": "Status"},
    ],
    ids=["refused", "cut off", "not JSON", "an object without a status", "no event at all"],
)
def test_whatever_breaks_a_watch_the_next_assignment_is_heard(
    monkeypatch: pytest.MonkeyPatch, broken: dict[str, Any] | Exception
) -> None:
    assert epochs(monkeypatch, [[job(1, "ADDED"), broken], [broken], [job(2, "ADDED")]], 2) == [1, 2]


def test_an_assignment_that_cannot_be_read_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert epochs(monkeypatch, [[job(-1, "ADDED"), job(2)]], 1) == [2]
