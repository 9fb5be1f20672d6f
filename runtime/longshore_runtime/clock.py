"""The clock of the shell; whatever decides gets its readings as arguments."""

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock."""

    def now_s(self) -> float:
        """Return seconds since some fixed moment."""


class SystemClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        return time.monotonic()
