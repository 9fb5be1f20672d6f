"""What counts as a reward."""

import math
from numbers import Real
from typing import Final

MAX_REWARD: Final = 1e9
"""Rewards beyond it, or below its negative, are refused."""


def finite_reward(value: object) -> float:
    """Return the reward as a float; raises ValueError for what is no number within the bounds.

    NumPy's numbers are numbers.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"returned {value!r} instead of a number")
    try:
        # First, as a small type of NumPy would take the bounds for infinite.
        reward = float(value)
    except OverflowError:  # A whole number that is too large.
        reward = math.inf
    if not abs(reward) <= MAX_REWARD:  # NaN is not, either.
        raise ValueError(f"returned {value} instead of a number from {-MAX_REWARD:g} to {MAX_REWARD:g}")
    return reward
