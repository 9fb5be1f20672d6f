"""What counts as a reward."""

import math
from numbers import Complex, Real
from typing import Final

from longshore_runtime.rewards.failure_text import error_text, shown

MAX_REWARD: Final = 1e9
"""Largest reward; those beyond it, or below its negative, are refused."""


def optional_reward(value: object) -> float | None:
    """Return the reward of an episode: None is none, and a truth value is 0 or 1; raises ValueError as below."""
    if value is None:
        return None
    return finite_reward(float(value) if is_boolean(value) else value)  # type: ignore[arg-type]


def finite_reward(value: object) -> float:
    """Return the reward as a float.

    Everything that converts itself is a number: those of Python, NumPy and torch, also in an array with one element.

    Raises:
        ValueError: it is no number within the bounds; the end of a sentence that begins with the name of a function.
    """
    if is_boolean(value) or not _is_number(value):
        raise ValueError(f"returned {shown(value)} instead of a number")
    try:
        # First, as a small type of NumPy would take the bounds for infinite.
        reward = float(value.item() if hasattr(value, "item") else value)  # type: ignore[arg-type]
    except OverflowError:  # A whole number that is too large.
        reward = math.inf
    except Exception as error:  # A conversion of users may raise anything.
        raise ValueError(f"returned {shown(value)}, which float() does not convert ({error_text(error)})") from error
    if not abs(reward) <= MAX_REWARD:  # NaN is not, either.
        raise ValueError(f"returned {shown(value)} instead of a number from {-MAX_REWARD:g} to {MAX_REWARD:g}")
    return reward


def is_boolean(value: object) -> bool:
    """Return whether a value is a boolean of Python, NumPy or torch."""
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def _is_number(value: object) -> bool:
    if isinstance(value, str | bytes) or (isinstance(value, Complex) and not isinstance(value, Real)):
        return False
    return hasattr(type(value), "__float__") or hasattr(type(value), "__index__")
