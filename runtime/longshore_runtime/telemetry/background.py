"""Work that the driver gives to a separate thread and never waits for: files, trackers, collectors of traces.

driver ── `give` (drops if full), `give_surely` (waits) ──► queue of `capacity` ──► thread: `handle`, item by item
driver or thread ── first lost item ──► `on_trouble`
driver ── `close` ──► end mark behind the last item; waits for the thread, at most `limit_s`
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import structlog

from longshore_runtime.errors import first_line

log = structlog.get_logger()

T = TypeVar("T")
CLOSE_LIMIT_S: Final = 30.0
"""Seconds that waiting items get at the end of a session, which then ends without them."""


class Background(Generic[T]):
    """A queue whose items are processed in order. An item that finds the queue full is dropped and counted."""

    def __init__(
        self, name: str, handle: Callable[[T], None], capacity: int, on_trouble: Callable[[str], None]
    ) -> None:
        """Start the thread; `on_trouble` is called with the reason when the first item is lost, from any thread."""
        self._name = name
        self._handle = handle
        self._on_trouble = on_trouble
        self._items: queue.Queue[T | None] = queue.Queue(capacity)
        self._lock = threading.Lock()
        self._num_lost = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def num_lost(self) -> int:
        """Number of items that were dropped or could not be handled."""
        with self._lock:
            return self._num_lost

    def give(self, item: T) -> None:
        """Add an item; does not wait."""
        try:
            self._items.put_nowait(item)
        except queue.Full:
            self._lost("it does not keep up with the job")

    def give_surely(self, item: T) -> None:
        """Add an item that is never dropped; waits while the queue is full."""
        self._items.put(item)

    def close(self, limit_s: float = CLOSE_LIMIT_S) -> None:
        """Wait until all items are done, but not longer than `limit_s`, because a service may hang."""
        deadline_s = time.monotonic() + limit_s
        try:
            self._items.put(None, timeout=limit_s)
            self._thread.join(max(0.0, deadline_s - time.monotonic()))
        except queue.Full:
            pass  # It hangs, which is reported below.
        if self._thread.is_alive():
            log.warning("work is left behind", worker=self._name, num_items=self._items.qsize())
        if self.num_lost:
            log.warning("items were lost", worker=self._name, num_items=self.num_lost)

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            try:
                self._handle(item)
            except Exception as error:  # noqa: BLE001 - whatever a file system or a service does, later items are tried
                log.warning("an item was lost", worker=self._name, error=first_line(error))
                self._lost(first_line(error))

    def _lost(self, reason: str) -> None:
        with self._lock:
            self._num_lost += 1
            is_first = self._num_lost == 1
        if is_first:
            self._on_trouble(reason)
