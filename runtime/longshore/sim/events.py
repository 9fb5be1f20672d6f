"""The virtual clock: what happens next, in order of time; what happens at once, in order of arrangement."""

import heapq
from collections.abc import Callable
from typing import Any


class EventQueue:
    """Actions at points in time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], Any]]] = []
        self._num_arranged = 0
        self.now_s = 0.0

    def at(self, time_s: float, action: Callable[[], Any]) -> None:
        """Arrange an action; nothing happens before it is arranged."""
        assert time_s >= self.now_s, "an event lies in the past"
        self._num_arranged += 1
        heapq.heappush(self._heap, (time_s, self._num_arranged, action))

    def run_until(self, done: Callable[[], bool]) -> None:
        """Let things happen until `done`."""
        while not done():
            assert self._heap, "the simulation waits for something that never happens"
            self.now_s, _, action = heapq.heappop(self._heap)
            action()
