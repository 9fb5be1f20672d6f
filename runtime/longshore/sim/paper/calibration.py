"""Constants that papers leave open, and how they are found from baselines."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Constant:
    """A free constant: one value for all cells of a paper."""

    name: str
    value: float
    unit: str
    calibrated_on: str
    """Baseline figures that determine it, or the convention that stands in for one."""


CONVENTION = "convention: the paper does not say"


def solve(
    function: Callable[[float], float], target: float, low: float, high: float, *, tolerance: float = 0.005
) -> float:
    """Where a rising function meets a target, to a relative error; the nearer end where it does not in [low, high].

    False position with halving of the end that stays (Illinois), which takes few evaluations of nearly straight lines.
    """
    at_low, at_high = function(low) - target, function(high) - target
    if at_low >= 0 or at_high <= 0:
        return low if at_low >= 0 else high
    side = 0
    while True:
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        at_middle = function(middle) - target
        if abs(at_middle) <= tolerance * abs(target) or high - low <= 1e-9 * abs(high):
            return middle
        if at_middle < 0:
            low, at_low = middle, at_middle
            at_high, side = (at_high / 2, -1) if side == -1 else (at_high, -1)
        else:
            high, at_high = middle, at_middle
            at_low, side = (at_low / 2, 1) if side == 1 else (at_low, 1)
