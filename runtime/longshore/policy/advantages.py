"""Advantages: how much better a response is than its siblings, or, without any, than the others of the batch.

Wherever rewards are equal but for rounding, advantages are exactly 0.0: a group without a signal has no gradient.
"""

from collections.abc import Sequence
from itertools import chain
from math import fsum, isclose
from statistics import fmean, stdev
from typing import Final

from longshore.api.objective import AdvantageEstimator

Advantages = tuple[float, ...]
_RELATIVE_TOLERANCE: Final = 1e-9
_ABSOLUTE_TOLERANCE: Final = 1e-12
"""Difference that rounding may leave where weighted rewards of about 1 cancel out."""


def batch_advantages(
    estimator: AdvantageEstimator, groups: Sequence[Sequence[float]], epsilon: float
) -> list[Advantages]:
    """Advantages of several groups, each given by the rewards of one prompt's responses.

    Every estimator but BATCH_WHITENED looks at one group at a time: a streamed batch gives the same values as a whole
    one.
    """
    match estimator:
        case AdvantageEstimator.GROUP_NORMALISED:
            return [group_advantages(rewards, epsilon) for rewards in groups]
        case AdvantageEstimator.GROUP_CENTRED:
            return [centred_advantages(rewards) for rewards in groups]
        case AdvantageEstimator.LEAVE_ONE_OUT:
            return [leave_one_out_advantages(rewards) for rewards in groups]
        case AdvantageEstimator.BATCH_WHITENED:
            return whitened_advantages(groups, epsilon)


def are_equal(rewards: Sequence[float]) -> bool:
    """Return whether rewards differ by no more than rounding, as 0.1 + 0.2 and 0.3 do, so that they give no signal."""
    return not rewards or isclose(min(rewards), max(rewards), rel_tol=_RELATIVE_TOLERANCE, abs_tol=_ABSOLUTE_TOLERANCE)


def group_advantages(rewards: Sequence[float], epsilon: float) -> Advantages:
    """Return the rewards of one prompt's responses, normalised among themselves: (r - mean) / (unbiased std + epsilon).

    DeepSeekMath (GRPO), section 4.1. Exactly 0.0 everywhere in a group whose rewards are all equal.
    """
    if are_equal(rewards):
        return (0.0,) * len(rewards)
    mean, spread = fmean(rewards), stdev(rewards)
    return tuple((reward - mean) / (spread + epsilon) for reward in rewards)


def centred_advantages(rewards: Sequence[float]) -> Advantages:
    """Return r - mean of the group: without the division, which makes very easy and very hard prompts weigh more.

    Understanding R1-Zero-Like Training (Dr. GRPO), section 3.2.
    """
    if are_equal(rewards):
        return (0.0,) * len(rewards)
    mean = fmean(rewards)
    return tuple(reward - mean for reward in rewards)


def leave_one_out_advantages(rewards: Sequence[float]) -> Advantages:
    """Return r - mean of the *other* responses: a baseline that does not contain what it is compared with.

    Back to Basics (Ahmadian et al., 2024). It equals n / (n - 1) times the centred reward.
    """
    if are_equal(rewards):
        return (0.0,) * len(rewards)
    total, num_others = fsum(rewards), len(rewards) - 1
    return tuple(reward - (total - reward) / num_others for reward in rewards)


def whitened_advantages(groups: Sequence[Sequence[float]], epsilon: float) -> list[Advantages]:
    """Centred within each group, then divided by (unbiased std over the responses of the whole batch + epsilon).

    REINFORCE++ with baseline. The batch's mean needs no subtraction: it is 0, since that of each group is. Where every
    group is a single response, which has no siblings, rewards are centred in the batch: REINFORCE++ without baseline.
    """
    centred: list[Advantages]
    if all(len(rewards) == 1 for rewards in groups):
        centred = [(value,) for value in centred_advantages([rewards[0] for rewards in groups])]
    else:
        centred = [centred_advantages(rewards) for rewards in groups]
    values = list(chain.from_iterable(centred))
    if are_equal(values):
        return centred
    scale = stdev(values) + epsilon
    return [tuple(value / scale for value in group) for group in centred]
