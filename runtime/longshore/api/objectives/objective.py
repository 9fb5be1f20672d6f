"""What an objective is: settings, an advantage estimator, the loss of a token, and the way in which losses add up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pydantic import Field

from longshore.api.base import ApiModel
from longshore.api.objectives.advantages import Advantages, Rewards, normalised
from longshore.api.objectives.aggregation import Aggregation

if TYPE_CHECKING:
    from torch import Tensor

ADVANTAGE_EPSILON: Final = 1e-6


@dataclass(frozen=True)
class LossTokens:
    """The loss-mask tokens of whole responses, one response after the other; every tensor is [tokens]."""

    log_probs: "Tensor"
    """Log-probabilities under the weights in training; they alone carry a gradient."""
    old_log_probs: "Tensor"
    """Log-probabilities that ratios are relative to: the engine's, or the trainer's with `rolloutCorrection`."""
    rollout_log_probs: "Tensor"
    """Log-probabilities of the engine when it sampled the tokens."""
    advantages: "Tensor"
    """Advantage of each token's response."""
    lengths: Sequence[int]
    """Number of tokens of each response, at least 1."""

    @property
    def ratio(self) -> "Tensor":
        """Importance ratio of each token, with gradient."""
        return (self.log_probs - self.old_log_probs).exp()

    def mean_per_response(self, values: "Tensor") -> "Tensor":
        """Replace the value of each token by the mean of its response."""
        means, start = values.new_empty(values.shape), 0
        for length in self.lengths:
            means[start : start + length] = values[start : start + length].mean()
            start += length
        return means


@dataclass(frozen=True)
class TokenLosses:
    """Policy-gradient losses of tokens, not yet weighted; both tensors are [tokens]."""

    loss: "Tensor"
    """Loss with gradient."""
    is_clipped: "Tensor"
    """Whether clipping removed the gradient of the token, or cut its weight (bool)."""


class Objective(ApiModel):
    """Base of all objectives.

    A subclass has a field `name` and its settings, and overrides what differs. `docs/reference/objectives.md` shows its
    docstring (the idea, its source, when to choose it), and the first lines of those of `advantages` and
    `token_losses`, which are formulas after the word Compute. A loss that clips ratios has the base `ClippedObjective`,
    and advantages with a deviation have `NormalisedObjective`; both may be bases of one class.
    """

    @property
    def loss_aggregation(self) -> Aggregation:
        """How the losses of tokens become the loss of an update."""
        return Aggregation.TOKEN_MEAN

    @property
    def compares_with_trainer(self) -> bool:
        """Whether ratios are relative to the trainer's log-probabilities at the start of the step.

        Otherwise they are relative to the engine's, which costs nothing and corrects for what the two differ by. That
        is wrong where clips are as narrow as rounding (`policy.old_log_probs`).
        """
        return False

    @property
    def needs_whole_batch(self) -> bool:
        """Whether no advantage is known before the last group of the step.

        Such a batch can be neither streamed nor divided over several updates.
        """
        return False

    @property
    def compares_siblings(self) -> bool:
        """Whether advantages compare the responses of one prompt, so that there must be two of them."""
        return True

    def advantages(self, groups: Sequence[Rewards]) -> list[Advantages]:
        """Compute (r - mean) / (deviation + 1e-6) within each group.

        Args:
            groups: rewards of the responses of each prompt.
        """
        return [normalised(rewards, ADVANTAGE_EPSILON) for rewards in groups]

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Compute the loss of each token, from its ratio and advantage A."""
        raise NotImplementedError


class ClippedObjective(Objective):
    """Base of objectives whose loss is the clipped ratio times the advantage (PPO, equation 7)."""

    clip_low: float = Field(default=0.2, gt=0, le=1_000)
    """Distance from 1 to the lower clip of the importance ratio (CISPO: to the smallest weight). From 1 on, there is
    none."""
    clip_high: float = Field(default=0.2, gt=0, le=1_000)
    """Distance from 1 to the upper clip of the importance ratio (CISPO: to the largest weight)."""

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Compute -min(ratio * A, clip(ratio) * A)."""
        return self.clipped(tokens.ratio, tokens.advantages)

    def clipped(self, ratio: "Tensor", advantages: "Tensor") -> TokenLosses:
        """Compute the clipped losses for these ratios."""
        surrogate = ratio * advantages
        bounded = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high) * advantages
        return TokenLosses(-surrogate.minimum(bounded), bounded < surrogate)


class NormalisedObjective(Objective):
    """Base of objectives that divide advantages by a deviation of rewards."""

    advantage_epsilon: float = Field(default=ADVANTAGE_EPSILON, gt=0, le=1)
    """Number added to the standard deviation of rewards by which advantages are divided."""

    def advantages(self, groups: Sequence[Rewards]) -> list[Advantages]:
        """Compute (r - mean) / (deviation + advantageEpsilon) within each group."""
        return [normalised(rewards, self.advantage_epsilon) for rewards in groups]
