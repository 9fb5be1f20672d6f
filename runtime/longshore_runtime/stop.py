"""The request to stop the pod, and how its grace period is divided among what is left to do."""

import math
import time
from collections.abc import Callable
from typing import Final

from longshore.api.contract import COORDINATOR_GRACE_S
from longshore_runtime.errors import ASKED_TO_STOP, Interrupted

_UPDATE_SHARE: Final = 0.4
"""Share of the grace period in which a running update may end: its step would have to be sampled again."""
_SAVE_SHARE: Final = 0.75
"""Share of the grace period at whose end the last checkpoint is written."""
_CLOSE_SHARE: Final = 0.9
"""Share of the grace period at whose end trackers and collectors have received what waited for them."""


class Stop:
    """Whether the pod was asked to stop, and what it still has time for.

    Threads: the handler of a signal or the driver sets it, once; any thread may read it.
    """

    def __init__(self, grace_s: float = COORDINATOR_GRACE_S, now_s: Callable[[], float] = time.monotonic) -> None:
        """Begin unasked; `grace_s`: seconds from the request until the pod is killed."""
        self._grace_s = grace_s
        self._now_s = now_s
        self._asked_s: float | None = None

    def ask(self) -> None:
        """Note that the pod is asked to stop; only the first time counts."""
        if self._asked_s is None:
            self._asked_s = self._now_s()

    @property
    def is_asked(self) -> bool:
        """Whether the pod was asked to stop."""
        return self._asked_s is not None

    def require_none(self) -> None:
        """Raise Interrupted if the pod was asked to stop."""
        if self.is_asked:
            raise Interrupted(ASKED_TO_STOP)

    def require_time_to_update(self) -> None:
        """Raise Interrupted if the pod was asked to stop so long ago that it cannot wait for an update any longer."""
        if self._left_s(_UPDATE_SHARE) <= 0.0:
            raise Interrupted(f"{ASKED_TO_STOP}, and the update takes too long")

    @property
    def save_limit_s(self) -> float:
        """Seconds that writing a checkpoint may take."""
        return self._left_s(_SAVE_SHARE)

    @property
    def close_limit_s(self) -> float:
        """Seconds that sending what waits for trackers and collectors may take."""
        return self._left_s(_CLOSE_SHARE)

    def _left_s(self, share: float) -> float:
        """Return the seconds until this share of the grace period is over; infinity while nobody has asked."""
        if self._asked_s is None:
            return math.inf
        return max(0.0, share * self._grace_s - (self._now_s() - self._asked_s))
