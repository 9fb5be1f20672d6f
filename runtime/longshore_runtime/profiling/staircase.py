"""Decode steps of many batch sizes from one batch, which is halved again and again. Pure.

All requests begin together. One ends first, as a mark that the prompts are computed; then half of the batch ends,
then half of what is left, down to a single request. Between two ends the batch is constant, and what the engine counted
at both gives the time of its steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from longshore_runtime.backends.engine_protocol import EngineStats

_LEVEL_STEPS: Final = 24
"""Steps of each batch size: more than the prompts of a batch take, since what started first ends first."""
_LEAST_STEPS: Final = 4
"""Smallest number of steps between two ends that gives a measurement."""
_LEAST_LEVEL_STEPS: Final = 2 + _LEAST_STEPS
_KV_SHARE: Final = 0.8
"""Share of the KV cache, in tokens, that is used; the rest covers blocks that are not full."""
_MOST_PROMPT_TOKENS: Final = 1 << 17
"""Largest number of tokens of all prompts of a batch: more only take time to compute."""


@dataclass(frozen=True)
class EngineLimits:
    """Limits of an engine, in requests and tokens."""

    max_num_seqs: int
    max_context_tokens: int
    kv_capacity_tokens: int


@dataclass(frozen=True)
class Staircase:
    """One batch of requests, described by how it shrinks."""

    sizes: tuple[int, ...]
    """Number of requests that run on each level, falling to 1."""
    level_steps: int
    prompt_tokens: int
    """Prompt tokens of each request."""

    @property
    def lengths(self) -> list[int]:
        """Response tokens of each request; the first is the mark."""
        falls = zip(self.sizes, (*self.sizes[1:], 0), strict=True)
        ends = [
            self.level_steps * level for level, (size, left) in enumerate(falls, start=2) for _ in range(size - left)
        ]
        return [self.level_steps, *ends]


@dataclass(frozen=True)
class Ended:
    """The end of requests on an engine, with its counters at that time."""

    num_requests: int
    num_tokens: int
    """Length of the longest of these requests, in tokens."""
    stats: EngineStats


@dataclass(frozen=True)
class Window:
    """Steps during which the batch was constant."""

    num_running: int
    context_tokens: int
    """Context tokens of all requests together, in the middle of the window."""
    step_s: float


def staircase(limits: EngineLimits, prompt_tokens: int) -> Staircase:
    """Return the largest staircase that an engine holds, with prompts of this length, or shorter if necessary."""
    sizes = _sizes(max(1, limits.max_num_seqs - 1))
    while True:
        level_steps = min(_LEVEL_STEPS, limits.max_context_tokens // 2 // (len(sizes) + 1))
        room = _KV_SHARE * limits.kv_capacity_tokens / (sizes[0] + 1) - 3 * level_steps
        if len(sizes) == 1 or (room >= 1 and level_steps >= _LEAST_LEVEL_STEPS):
            break
        sizes = sizes[1:] if room < 1 else (*sizes[:-2:2], 1)
    longest = min(limits.max_context_tokens - (len(sizes) + 1) * level_steps, int(room))
    fitting = min(prompt_tokens, longest, _MOST_PROMPT_TOKENS // (sizes[0] + 1))
    return Staircase(sizes, max(1, level_steps), max(1, fitting))


def windows(stairs: Staircase, ends: Sequence[Ended]) -> list[Window]:
    """Return the windows between the ends on one engine, which are given in their order.

    A window in which prompts were computed as well, or in which requests waited, samples fewer tokens and is left out.
    """
    found, num_left = [], sum(1 for _ in stairs.lengths)
    for before, after in pairwise(ends):
        num_left -= before.num_requests
        steps = after.stats.num_steps - before.stats.num_steps
        sampled = after.stats.num_tokens - before.stats.num_tokens
        if num_left in stairs.sizes and steps >= _LEAST_STEPS and sampled == num_left * steps:
            tokens = stairs.prompt_tokens + (before.num_tokens + after.num_tokens) // 2
            step_s = (after.stats.read_s - before.stats.read_s) / steps
            found.append(Window(num_left, num_left * tokens, step_s))
    return found


def _sizes(largest: int) -> tuple[int, ...]:
    powers = [1 << exponent for exponent in range(largest.bit_length()) if 1 << exponent < largest]
    return (largest, *reversed(powers))
