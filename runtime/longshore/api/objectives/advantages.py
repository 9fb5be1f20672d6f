"""Advantages: how much better a response is than its siblings, or, without any, than the others of the batch.

Wherever rewards are equal but for rounding, advantages are exactly 0.0: a group without a signal has no gradient.
"""

from collections.abc import Sequence
from itertools import chain
from math import fsum, isclose
from statistics import fmean, stdev
from typing import Final

Rewards = Sequence[float]
"""Rewards of the responses to one prompt, penalties included."""
Advantages = tuple[float, ...]
_RELATIVE_TOLERANCE: Final = 1e-9
_ABSOLUTE_TOLERANCE: Final = 1e-12
"""Difference that rounding may leave where weighted rewards of about 1 cancel out."""


def are_equal(rewards: Rewards) -> bool:
    """Return whether rewards differ by no more than rounding, as 0.1 + 0.2 and 0.3 do, so that they give no signal."""
    return not rewards or isclose(min(rewards), max(rewards), rel_tol=_RELATIVE_TOLERANCE, abs_tol=_ABSOLUTE_TOLERANCE)


def normalised(rewards: Rewards, epsilon: float) -> Advantages:
    """Return the rewards of one prompt's responses, normalised among themselves: (r - mean) / (unbiased std + epsilon).

    DeepSeekMath (GRPO), section 4.1. Exactly 0.0 everywhere in a group whose rewards are all equal.
    """
    if are_equal(rewards):
        return (0.0,) * len(rewards)
    mean, spread = fmean(rewards), stdev(rewards)
    return tuple((reward - mean) / (spread + epsilon) for reward in rewards)


def centred(rewards: Rewards) -> Advantages:
    """Return r - mean of the group: without the division, which makes very easy and very hard prompts weigh more.

    Understanding R1-Zero-Like Training (Dr. GRPO), section 3.2.
    """
    if are_equal(rewards):
        return (0.0,) * len(rewards)
    mean = fmean(rewards)
    return tuple(reward - mean for reward in rewards)


def leave_one_out(rewards: Rewards) -> Advantages:
    """Return r - mean of the *other* responses: a baseline that does not contain what it is compared with.

    Back to Basics (Ahmadian et al., 2024). It equals n / (n - 1) times the centred reward.
    """
    if are_equal(rewards):
        return (0.0,) * len(rewards)
    total, num_others = fsum(rewards), len(rewards) - 1
    return tuple(reward - (total - reward) / num_others for reward in rewards)


def whitened(groups: Sequence[Rewards], epsilon: float) -> list[Advantages]:
    """Centre rewards within each group, and divide them by (unbiased std over the whole batch + epsilon).

    REINFORCE++ with baseline. The batch's mean needs no subtraction: it is 0, since that of each group is. Where every
    group is a single response, which has no siblings, rewards are centred in the batch: REINFORCE++ without baseline.
    """
    if all(len(rewards) == 1 for rewards in groups):
        within: list[Advantages] = [(value,) for value in centred([rewards[0] for rewards in groups])]
    else:
        within = [centred(rewards) for rewards in groups]
    values = list(chain.from_iterable(within))
    if are_equal(values):
        return within
    scale = stdev(values) + epsilon
    return [tuple(value / scale for value in group) for group in within]
