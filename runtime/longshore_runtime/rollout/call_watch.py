"""Calls that do not come back: a thread that reports those which take longer than they may."""

import threading
import time
from collections.abc import Callable, Hashable
from typing import Final

_CHECK_S: Final = 5.0


class CallWatch:
    """Calls under way, each with a name and a deadline."""

    def __init__(self, on_overdue: Callable[[Hashable], None], check_s: float = _CHECK_S) -> None:
        """Start the thread that watches, in which `on_overdue` is called once for a call whose time is over."""
        self._on_overdue = on_overdue
        self._check_s = check_s
        self._lock = threading.Lock()
        self._deadlines_s: dict[Hashable, float] = {}
        self._is_stopped = threading.Event()
        threading.Thread(target=self._run, name="call-watch", daemon=True).start()

    def began(self, call: Hashable, limit_s: float) -> None:
        """Note that a call is made."""
        with self._lock:
            self._deadlines_s[call] = time.monotonic() + limit_s

    def ended(self, call: Hashable) -> None:
        """Note that a call has returned."""
        with self._lock:
            self._deadlines_s.pop(call, None)

    def stop(self) -> None:
        """Stop the thread that reports overdue calls."""
        self._is_stopped.set()

    def _run(self) -> None:
        while not self._is_stopped.wait(self._check_s):
            for call in self._overdue():
                self._on_overdue(call)

    def _overdue(self) -> list[Hashable]:
        now_s = time.monotonic()
        with self._lock:
            overdue = [call for call, deadline_s in self._deadlines_s.items() if deadline_s < now_s]
            for call in overdue:
                del self._deadlines_s[call]
        return overdue
