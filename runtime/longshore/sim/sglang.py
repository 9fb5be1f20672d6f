"""Room that SGLang's scheduler keeps in the KV cache for what running requests are expected to grow by.

A request starts if its context and the most that it may still add fit beside a share of what each running one may still
add. The share falls with every step, and rises to what was needed when requests had to be stopped. So of many requests
that come at once, the first get a start before the cache is full (`PrefillAdder`, `NewTokenRatioTracker` and
`retract_decode` of its code, with its default settings).
"""

from collections.abc import Iterable
from typing import Final

_FIRST_SHARE: Final = 0.7
_LEAST_SHARE: Final = 0.14 * _FIRST_SHARE
_LESS_PER_STEP: Final = (_FIRST_SHARE - _LEAST_SHARE) / 600
_MAX_GROWTH_TOKENS: Final = 4096
"""No request is expected to grow by more."""
_STEPS_AFTER_PREEMPTION: Final = 20
"""For which those that still run have room."""
CHUNK_TOKENS: Final = 8192
"""Computed in one prefill; what it starts counts as running in the next."""


class Reserve:
    """Tokens that the scheduler of one engine keeps free for running requests."""

    def __init__(self, max_new_tokens: int) -> None:
        """Take `max_new_tokens`, the limit of every response, which is all that the scheduler knows of its length."""
        self._max_new_tokens = max_new_tokens
        self.emptied()

    def emptied(self) -> None:
        """Reset the reserve because nothing runs or waits."""
        self._share = _FIRST_SHARE
        self._skips_step = False
        self.is_open = True
        """Whether requests may start: once one did not fit, none is tried until another has left."""

    def growth(self, num_tokens: int) -> int:
        """Return the tokens that a request with `num_tokens` response tokens may still add."""
        return min(self._max_new_tokens - num_tokens, _MAX_GROWTH_TOKENS)

    def kept_for(self, num_running: int, total_tokens: int, num_tokens: Iterable[int]) -> float:
        """Return the room for running requests with so many response tokens each; `total_tokens` is their sum."""
        most, limit = _MAX_GROWTH_TOKENS, self._max_new_tokens
        if limit <= most:
            return self._share * (num_running * limit - total_tokens)
        # Not by `growth`: this is most of what a simulation of SGLang computes.
        return self._share * sum([limit - each if limit - each < most else most for each in num_tokens])

    def stepped(self, num_steps: int) -> None:
        """Note steps that went by; in one that began with preemptions the share does not fall."""
        if num_steps:
            num_falls = num_steps - self._skips_step
            self._skips_step = False
            self._share = max(_LEAST_SHARE, self._share - num_falls * _LESS_PER_STEP)

    def preempted(self, num_left: int, total_tokens: int) -> None:
        """Note that requests were stopped; those that are left have so many response tokens together."""
        needed = total_tokens + _STEPS_AFTER_PREEMPTION * num_left
        self._share = min(1.0, needed / (self._max_new_tokens * num_left + 1))
        self._skips_step = True
        self.is_open = False  # What was just stopped would be the first to fit, and does not.
