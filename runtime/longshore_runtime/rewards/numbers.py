"""What counts as a reward."""

import math
from numbers import Real


def finite_reward(value: object) -> float:
    """Return the reward as a float; raises ValueError for what is no finite number. NumPy's numbers are numbers."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"returned {value!r} instead of a number")
    if not math.isfinite(value):
        raise ValueError(f"returned {value}")
    return float(value)
