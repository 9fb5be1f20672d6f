"""Constants that papers leave open, and how they are found from baselines."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Constant:
    """A free constant: one value for all cells of a paper."""

    name: str
    value: float
    unit: str
    calibrated_on: str
    """Baseline figures that determine it, or the convention that stands in for one."""


CONVENTION: Final = "convention: the paper does not say"
_MAX_ROUNDS: Final = 64
"""Most rounds of the solver: half of them halve the bracket."""
_TOLERANCE: Final = 0.005
"""Relative to the target."""


def solve(function: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Return where a rising function meets a target, within _TOLERANCE; the nearer end if not in [low, high].

    False position, which meets nearly straight lines at once, in turn with bisection, which always ends.
    """
    at_low, at_high = function(low) - target, function(high) - target
    if at_low >= 0 or at_high <= 0:
        return low if at_low >= 0 else high
    middle = low
    for number in range(_MAX_ROUNDS):
        straight = (low * at_high - high * at_low) / (at_high - at_low)
        middle = (low + high) / 2 if number % 2 else straight
        at_middle = function(middle) - target
        if abs(at_middle) <= _TOLERANCE * abs(target):
            break
        if at_middle < 0:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return middle
