"""A pulse in the driver's event queue, for what changes by the passing of time alone."""

import queue
import threading

from longshore_runtime.rollout.events import Event


class Pulse:
    """Puts `event` into the queue every `every_s`; the next one only after `answered`, so that they never pile up."""

    def __init__(self, events: "queue.SimpleQueue[Event]", event: Event, every_s: float) -> None:
        self._events = events
        self._event = event
        self._every_s = every_s
        self._is_answered = threading.Event()
        self._is_answered.set()
        self._is_stopped = threading.Event()
        threading.Thread(target=self._run, name="pulse", daemon=True).start()

    def answered(self) -> None:
        """Note that the event was taken out of the queue and handled."""
        self._is_answered.set()

    def stop(self) -> None:
        """Put no more events."""
        self._is_stopped.set()
        self._is_answered.set()

    def _run(self) -> None:
        while not self._is_stopped.wait(self._every_s):
            self._is_answered.clear()
            self._events.put(self._event)
            self._is_answered.wait()
