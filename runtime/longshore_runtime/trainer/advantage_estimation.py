"""Generalised advantage estimation: from rewards and a critic's values to an advantage for every token."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from longshore.api.objectives.with_critic import ObjectiveWithCritic
from longshore_runtime.backends.trainer_protocol import Sample, SampleKey
from longshore_runtime.trajectories.trajectory import LogProbs, Mask

Values = npt.NDArray[np.floating]
_EPSILON: Final = 1e-8
"""Number that is added to a variance before advantages are divided by its root, as in verl and TRL."""


def discounted_sums(values: Values, factor: float) -> Values:
    """Return for each place the sum of the values from there on, each times `factor` to the power of its distance.

    Sums over 1, 2, 4, … places are put together, so that no loop runs over tokens.
    """
    sums, distance = values.astype(np.float64), 1
    while distance < len(sums):
        sums[:-distance] += factor**distance * sums[distance:]
        distance *= 2
    return sums


def estimate_advantages(reward: float | None, values: Values, gamma: float, decay: float) -> Values:
    """Return the advantages [num_tokens] of the sampled tokens of a response.

    Generalised advantage estimation (arXiv 1506.02438), equation 16, with `decay` as λ; extended (T-PPO, arXiv
    2506.15050) to responses that go on: the state after their last token is taken to have the value of the one before.

    Args:
        reward: reward with which the response ends; None: it goes on.
        values: values [num_tokens] that the critic gives each token before it is sampled.
    """
    following = np.append(values[1:], values[-1:] if reward is None else np.zeros(len(values[:1])))
    errors = gamma * following - values
    errors[-1:] += reward or 0.0
    return discounted_sums(errors, gamma * decay)


def with_estimates(
    samples: Sequence[Sample], values: Mapping[SampleKey, Values], objective: ObjectiveWithCritic
) -> list[Sample]:
    """Return the samples of a step with advantages, values and returns of their tokens.

    Tokens that an environment added are no steps: what comes before them is followed by the next sampled token. They
    are not in the loss, and have zeros. Responses that go on have no returns.
    """
    estimated = []
    for sample in samples:
        mask, own = sample.trajectory.mask, values[sample.key]
        advantages = np.zeros(len(mask))
        reward = sample.reward + sample.penalty if sample.is_finished else None
        advantages[mask] = estimate_advantages(reward, own[mask], objective.gamma, objective.gae_lambda)
        estimated.append((sample, advantages, own, _returns(reward, advantages, own, mask, objective)))
    mean, deviation = 0.0, 1.0
    if objective.whiten:
        mean, deviation = _moments([advantages[sample.in_loss] for sample, advantages, *_ in estimated])
    return [
        replace(sample, advantage=np.asarray((advantages - mean) / deviation, np.float32), values=own, returns=returns)
        for sample, advantages, own, returns in estimated
    ]


def _returns(
    reward: float | None, advantages: Values, values: Values, mask: Mask, objective: ObjectiveWithCritic
) -> LogProbs | None:
    """Return what the critic learns; a critic of unfinished responses gets discounted rewards, which have no bias."""
    if reward is None:
        return None
    found = np.zeros(len(mask), np.float32)
    if objective.trains_unfinished:
        found[mask] = reward * objective.gamma ** np.arange(np.count_nonzero(mask))[::-1]
    else:
        found[mask] = advantages[mask] + values[mask]
    return found


def _moments(parts: Sequence[Values]) -> tuple[float, float]:
    """Return mean and unbiased deviation of all values; 0 and 1 of fewer than two."""
    values = np.concatenate(parts)
    if len(values) < 2:
        return 0.0, 1.0
    return float(values.mean()), float(np.sqrt(values.var(ddof=1) + _EPSILON))
