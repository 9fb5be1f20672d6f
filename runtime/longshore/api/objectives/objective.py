"""What an objective is: settings, an advantage estimator, the loss of a token, and the way in which losses add up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from longshore.api.base import ApiModel
from longshore.api.objectives.advantages import OF_WHOLE_BATCH, Advantages, Estimator, RewardedGroup, estimate
from longshore.api.objectives.aggregation import Aggregation

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TopTokens:
    """The tokens that a teacher finds most likely in the place of each token; both tensors are [tokens, topTokens]."""

    log_probs: "Tensor"
    """Log-probabilities under the weights in training, with gradient."""
    teacher_log_probs: "Tensor"
    """Log-probabilities under the teacher."""

    @property
    def divergence(self) -> "Tensor":
        """Forward KL divergence from the teacher at each token, over these tokens alone, with gradient."""
        return (self.teacher_log_probs.exp() * (self.teacher_log_probs - self.log_probs)).sum(-1)


@dataclass(frozen=True)
class LossTokens:
    """The loss-mask tokens of whole responses, one response after the other; every tensor is [tokens]."""

    log_probs: "Tensor"
    """Log-probabilities under the weights in training; they alone carry a gradient, with those of `top`."""
    old_log_probs: "Tensor"
    """Log-probabilities that ratios are relative to: the engine's, or the trainer's with `rolloutCorrection`."""
    rollout_log_probs: "Tensor"
    """Log-probabilities of the engine when it sampled the tokens."""
    advantages: "Tensor"
    """Advantage of each token: that of its response, unless tokens have their own."""
    lengths: Sequence[int]
    """Number of tokens of each response, at least 1."""
    reference_log_probs: "Tensor | None" = None
    """Log-probabilities of the reference: the initial model with a KL penalty, or a teacher; None: there is none."""
    top: TopTokens | None = None
    """The most likely tokens of a teacher; None: the objective compares sampled tokens alone."""

    @property
    def log_ratio(self) -> "Tensor":
        """Logarithm of the importance ratio of each token, with gradient."""
        return self.log_probs - self.old_log_probs

    @property
    def ratio(self) -> "Tensor":
        """Importance ratio of each token, with gradient."""
        return self.log_ratio.exp()

    def mean_per_response(self, values: "Tensor") -> "Tensor":
        """Replace the value of each token by the mean of its response."""
        return self.sum_per_response(values) / self.sum_per_response(values.new_ones(values.shape))

    def sum_per_response(self, values: "Tensor") -> "Tensor":
        """Replace the value of each token by the sum over its response."""
        lengths = values.new_tensor(self.lengths).long()
        response = lengths.new_tensor(range(len(lengths))).repeat_interleave(lengths)
        # On GPUs, `index_add` would add in any order.
        return values.new_zeros(len(lengths)).index_put((response,), values, accumulate=True)[response]


@dataclass(frozen=True)
class TokenLosses:
    """Policy-gradient losses of tokens, not yet weighted; both tensors are [tokens]."""

    loss: "Tensor"
    """Loss with gradient."""
    is_clipped: "Tensor | None" = None
    """Whether clipping removed the gradient of the token, or cut its weight (bool); None: of no token."""


class Objective(ApiModel):
    """Base of all objectives.

    A subclass has a field `name` and its settings, and overrides what differs. `docs/reference/objectives.md` shows its
    docstring (the idea, its source, when to choose it), and the first line of that of `token_losses`, which is a
    formula after the word Compute.
    """

    advantage: Estimator = Estimator.NORMALISED
    """How rewards become advantages: `docs/reference/objectives.md` has the formulas."""
    advantage_epsilon: float = Field(default=1e-6, gt=0, le=1)
    """Number added to a standard deviation of rewards by which advantages are divided."""
    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    """How token losses become the loss of an update. TokenMean: sum / number of tokens. SequenceMean: mean over each
    response, then over responses. SequenceSum: sum over each response, mean over responses. ConstantLength: sum /
    (number of responses * maxResponseTokens)."""

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
        return self.advantage in OF_WHOLE_BATCH

    @property
    def trains_without_advantage(self) -> bool:
        """Whether a token whose advantage is 0 has a gradient."""
        return False

    @property
    def needs_reference(self) -> bool:
        """Whether token losses read `LossTokens.reference_log_probs` of a model that trainers hold."""
        return False

    @property
    def num_top_tokens(self) -> int:
        """Number of tokens of `LossTokens.top` that token losses read; 0: they read none."""
        return 0

    @property
    def has_critic(self) -> bool:
        """Whether a value model is trained, whose values give every token its advantage after the round."""
        return self.advantage is Estimator.GAE

    @property
    def trains_unfinished(self) -> bool:
        """Whether the policy is trained on the tokens that a round samples, also of responses that it leaves over."""
        return False

    def advantages(self, groups: Sequence[RewardedGroup]) -> list[Advantages]:
        """Return the advantages of the responses to each prompt."""
        return estimate(self.advantage, groups, self.advantage_epsilon)

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Compute the loss of each token, from its ratio and advantage A."""
        raise NotImplementedError

    def importance_ratio(self, tokens: LossTokens) -> "Tensor":
        """Return the importance ratio of each token, or of its response, with gradient."""
        return tokens.ratio


class ClipRange(Objective):
    """Base of objectives that keep importance ratios, or their logarithms, in a range."""

    clip_low: float = Field(default=0.2, gt=0, le=1_000)
    """Distance from 1 to the lower clip of the importance ratio (CISPO: to the smallest weight; GMPO: from 0, of the
    logarithm). From 1 on, there is none, except with GMPO."""
    clip_high: float = Field(default=0.2, gt=0, le=1_000)
    """Distance from 1 to the upper clip of the importance ratio (CISPO: to the largest weight; GMPO: from 0, of the
    logarithm)."""


class ClippedObjective(ClipRange):
    """Base of objectives whose loss is the clipped ratio times the advantage (PPO, equation 7)."""

    dual_clip: float | None = Field(default=None, gt=1, le=1_000)
    """Largest ratio that counts where the advantage is negative, where no other clip bounds it; above 1 + clipHigh. It
    is verl's `clip_ratio_c` and TRL's `delta`. Unset: none."""

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Compute -min(ratio * A, clip(ratio) * A)."""
        return self.clipped(tokens.ratio, tokens.advantages)

    def clipped(self, ratio: "Tensor", advantages: "Tensor") -> TokenLosses:
        """Compute the clipped losses for these ratios."""
        surrogate = ratio * advantages
        bounded = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high) * advantages
        gain, is_clipped = surrogate.minimum(bounded), bounded < surrogate
        if self.dual_clip is not None:
            largest_loss = (self.dual_clip * advantages).where(advantages < 0, gain)
            gain, is_clipped = gain.maximum(largest_loss), is_clipped | (gain < largest_loss)
        return TokenLosses(-gain, is_clipped)
