"""The end of a session: its actors first, so that their GPUs are free, then what it reports to files and services."""

import contextlib
import time

from longshore_runtime.stop import Stop
from longshore_runtime.telemetry.background import CLOSE_LIMIT_S


class Ending:
    """Collects what has to be closed when a session ends, while it starts."""

    def __init__(self, stop: Stop) -> None:
        self.parts = contextlib.ExitStack()
        """Stack that ends actors and threads of the job."""
        self.reports = contextlib.ExitStack()
        """Stack that ends what reports to files and services, each within `left_s`, which is for all together."""
        self._stop = stop
        self._deadline_s: float | None = None

    def left_s(self) -> float:
        """Return the seconds that are left for what waits to be written and sent."""
        if self._deadline_s is None:
            return CLOSE_LIMIT_S
        return max(0.0, self._deadline_s - time.monotonic())

    def close(self) -> None:
        """Close the parts of the job first, then what reports to files and services."""
        with self.reports:
            try:
                self.parts.close()
            finally:
                self._deadline_s = time.monotonic() + min(CLOSE_LIMIT_S, self._stop.close_limit_s)
