"""Group-relative advantages."""

from collections.abc import Sequence
from statistics import fmean, stdev


def group_advantages(rewards: Sequence[float], epsilon: float) -> tuple[float, ...]:
    """Rewards of one prompt's responses, normalised among themselves: (r - mean) / (unbiased std + epsilon).

    DeepSeekMath (GRPO), section 4.1. A group whose rewards are all equal gives exactly 0.0 everywhere, as does a group
    of one. Nothing outside the group enters, so that a streamed batch gives the same values as a whole one.
    """
    if not rewards or min(rewards) == max(rewards):
        return (0.0,) * len(rewards)
    mean, spread = fmean(rewards), stdev(rewards)
    return tuple((reward - mean) / (spread + epsilon) for reward in rewards)
