"""Advantages: how much better a response is than its siblings, or, without any, than the others of the batch.

Wherever rewards are equal but for rounding, differences are exactly 0.0: a group without a signal has no gradient.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
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
_VARIANCE_EPSILON: Final = 1e-8
"""Number added to the variance by which advantages are whitened."""


class Estimator(StrEnum):
    """What the reward r of a response is compared with, and divided by."""

    NORMALISED = "Normalised"
    """(r - mean) / (deviation + advantageEpsilon) within each group"""
    CENTRED = "Centred"
    """r - mean within each group"""
    LEAVE_ONE_OUT = "LeaveOneOut"
    """r - mean of the other responses of the group"""
    LENGTH_WEIGHTED = "LengthWeighted"
    """r - mean of the group, in which a response counts by its number of tokens: OPO (arXiv 2505.23585)"""
    PASS_AT_K = "PassAtK"
    """(r - second best) / (deviation + advantageEpsilon) for the best response of a group, else 0: pass@k (arXiv
    2503.19595)"""
    NORMALISED_BY_BATCH = "NormalisedByBatch"
    """(r - mean of the group) / (deviation of all rewards of the batch + advantageEpsilon): arXiv 2508.08221"""
    NORMALISED_BY_FUNCTION = "NormalisedByFunction"
    """Normalised for each reward function alone, added up with the functions' weights, and normalised over the batch:
    GDPO (arXiv 2601.05242)"""
    WHITENED = "Whitened"
    """(r - mean) / deviation over all tokens of the batch: REINFORCE++"""
    CENTRED_WHITENED = "CentredWhitened"
    """r - mean of the group, whitened over all tokens of the batch: REINFORCE++ with baseline"""
    GAE = "GAE"
    """sum over k of (gamma * gaeLambda)^k * (r + gamma * next value - value) of the k-th token from here, where r is 0
    but for the last token: PPO and TPPO (arXiv 1506.02438)"""


OF_WHOLE_BATCH: Final = (
    Estimator.NORMALISED_BY_BATCH,
    Estimator.NORMALISED_BY_FUNCTION,
    Estimator.WHITENED,
    Estimator.CENTRED_WHITENED,
)
"""Estimators whose advantages are known only after the last group of a step."""
WITHOUT_SIBLINGS: Final = (Estimator.WHITENED, Estimator.CENTRED_WHITENED, Estimator.GAE)
"""Estimators that compare the single responses of several prompts, or a response with the values of a critic."""


@dataclass(frozen=True)
class RewardedGroup:
    """Responses to one prompt, as estimators see them."""

    rewards: Rewards
    num_tokens: Sequence[int]
    """Number of loss-mask tokens of each response."""
    parts: Sequence[tuple[float, Rewards]] = ()
    """Weight and rewards of each reward function; empty: nothing but the sum is known."""


def estimate(estimator: Estimator, groups: Sequence[RewardedGroup], epsilon: float) -> list[Advantages]:
    """Return the advantages of all responses; `epsilon` is added to deviations."""
    rewards = [group.rewards for group in groups]
    match estimator:
        case Estimator.NORMALISED:
            return [normalised(one, epsilon) for one in rewards]
        case Estimator.CENTRED:
            return [centred(one) for one in rewards]
        case Estimator.LEAVE_ONE_OUT:
            return [leave_one_out(one) for one in rewards]
        case Estimator.LENGTH_WEIGHTED:
            return [length_weighted(group.rewards, group.num_tokens) for group in groups]
        case Estimator.PASS_AT_K:
            return [best_only(one, epsilon) for one in rewards]
        case Estimator.NORMALISED_BY_BATCH:
            return normalised_by_batch(rewards, epsilon)
        case Estimator.NORMALISED_BY_FUNCTION:
            return normalised_by_function([group.parts or ((1.0, group.rewards),) for group in groups], epsilon)
        case Estimator.WHITENED:
            return whitened(rewards, [group.num_tokens for group in groups])
        case Estimator.CENTRED_WHITENED:
            within = [centred(one) if len(one) > 1 else tuple(one) for one in rewards]
            return whitened(within, [group.num_tokens for group in groups])
        case Estimator.GAE:  # Values turn rewards into advantages after the round.
            return [tuple(one) for one in rewards]


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


def length_weighted(rewards: Rewards, num_tokens: Sequence[int]) -> Advantages:
    """Return r - mean of the group, weighted by length: the baseline of least variance if tokens are alike (OPO)."""
    if are_equal(rewards) or not any(num_tokens):
        return (0.0,) * len(rewards)
    baseline = _token_mean(rewards, num_tokens)
    return tuple(reward - baseline for reward in rewards)


def best_only(rewards: Rewards, epsilon: float) -> Advantages:
    """Return (best - second best) / (unbiased std + epsilon) for the best response, and 0 for the others.

    What the group's best reward would lose without that response: optimising it optimises pass@k.
    """
    if len(rewards) < 2 or are_equal(top := sorted(rewards)[-2:]):
        return (0.0,) * len(rewards)
    second, best = top
    return tuple((best - second) / (stdev(rewards) + epsilon) if reward == best else 0.0 for reward in rewards)


def normalised_by_batch(groups: Sequence[Rewards], epsilon: float) -> list[Advantages]:
    """Centre rewards within each group, and divide them by (unbiased std of all rewards of the batch + epsilon)."""
    within, values = [centred(rewards) for rewards in groups], list(chain.from_iterable(groups))
    if are_equal(values):
        return within
    scale = stdev(values) + epsilon
    return [tuple(value / scale for value in group) for group in within]


def normalised_by_function(groups: Sequence[Sequence[tuple[float, Rewards]]], epsilon: float) -> list[Advantages]:
    """Normalise the rewards of each function within each group, and their weighted sum over the batch.

    Args:
        groups: by prompt, weight and rewards of each function.
        epsilon: number added to each deviation.
    """
    added = [_added_up([(weight, normalised(rewards, epsilon)) for weight, rewards in parts]) for parts in groups]
    return _regrouped(normalised(list(chain.from_iterable(added)), epsilon), added)


def whitened(groups: Sequence[Rewards], num_tokens: Sequence[Sequence[int]]) -> list[Advantages]:
    """Return (r - mean) / sqrt(variance + 1e-8), with mean and unbiased variance over all loss-mask tokens.

    REINFORCE++ (arXiv 2501.03262). Long responses count more, as they do in the gradient.
    """
    values, counts = list(chain.from_iterable(groups)), list(chain.from_iterable(num_tokens))
    if are_equal(values) or sum(counts) < 2:
        return [(0.0,) * len(group) for group in groups]
    mean = _token_mean(values, counts)
    squares = fsum(count * (value - mean) ** 2 for value, count in zip(values, counts, strict=True))
    scale = math.sqrt(squares / (sum(counts) - 1) + _VARIANCE_EPSILON)
    return _regrouped([(value - mean) / scale for value in values], groups)


def _added_up(parts: Sequence[tuple[float, Advantages]]) -> Advantages:
    weighted = [[weight * value for value in values] for weight, values in parts]
    return tuple(map(fsum, zip(*weighted, strict=True)))


def _token_mean(values: Rewards, counts: Sequence[int]) -> float:
    return fsum(value * count for value, count in zip(values, counts, strict=True)) / sum(counts)


def _regrouped(values: Sequence[float], groups: Sequence[Sequence[float]]) -> list[Advantages]:
    rest = iter(values)
    return [tuple(next(rest) for _ in group) for group in groups]
