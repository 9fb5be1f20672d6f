"""Events that reach the driver later, by one thread."""

import queue
import threading

from longshore_runtime.rewards.delayed import Delayed
from longshore_runtime.rewards.events import CheckDue
from longshore_runtime.rollout.events import Event, StopRequested

LIMIT_S = 30.0
AN_HOUR_S = 3600.0


def test_events_come_when_they_are_due_however_many_wait() -> None:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    before = threading.active_count()
    delayed = Delayed(events)
    for _ in range(3000):
        delayed.put(CheckDue(), AN_HOUR_S)
    delayed.put(StopRequested(), 0.0)
    assert isinstance(events.get(timeout=LIMIT_S), StopRequested), "it does not wait for what was put first"
    assert threading.active_count() == before + 1
    delayed.stop()


def test_nothing_comes_after_the_end() -> None:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    before = set(threading.enumerate())
    delayed = Delayed(events)
    delayed.stop()
    delayed.put(StopRequested(), 0.0)
    for thread in set(threading.enumerate()) - before:
        thread.join(LIMIT_S)
    assert events.empty()
