"""Events that reach the driver later."""

import heapq
import itertools
import queue
import threading
import time
from typing import Any


class Delayed:
    """Puts events into the driver's queue after a time, by one thread: thousands may wait while a service is away."""

    def __init__(self, events: "queue.SimpleQueue[Any]") -> None:
        self._events = events
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, object]] = []
        """Heap of events by the monotonic times at which they are due; numbers keep the order of equal ones."""
        self._numbers = itertools.count()
        self._is_stopped = False
        threading.Thread(target=self._run, name="delayed", daemon=True).start()

    def put(self, event: object, wait_s: float) -> None:
        """Put an event into the queue after `wait_s`."""
        with self._changed:
            heapq.heappush(self._waiting, (time.monotonic() + wait_s, next(self._numbers), event))
            self._changed.notify()

    def stop(self) -> None:
        """Put no more events."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._is_stopped:
                left_s = self._waiting[0][0] - time.monotonic() if self._waiting else None
                if left_s is None or left_s > 0:
                    self._changed.wait(left_s)
                else:
                    self._events.put(heapq.heappop(self._waiting)[2])
