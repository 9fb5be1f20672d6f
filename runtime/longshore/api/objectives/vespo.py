"""VESPO."""

import math
from typing import Final, Literal

from pydantic import Field

from longshore.api.objectives.objective import LossTokens, Objective, TokenLosses

_LEAST_LOG: Final = math.log(1e-8)
_LARGEST_LOG: Final = 20.0


class Vespo(Objective):
    """REINFORCE in which a response is weighted by a smooth function of its ratio, the product of its tokens' ratios.

    VESPO (arXiv 2602.10693), with TRL's bounds of logarithms. The weight w^k * exp(λ * (1 - w)) is 1 on-policy and
    falls on both sides, more steeply for negative advantages. Suits responses of older weights, without clips and
    without a mean over the length.
    """

    name: Literal["VESPO"] = "VESPO"
    k_positive: float = Field(default=2.0, ge=0, le=100)
    """Exponent k where the advantage is not negative: larger ones weaken responses that became less likely."""
    lambda_positive: float = Field(default=3.0, gt=0, le=100)
    """Decay λ where the advantage is not negative: larger ones weaken responses that became more likely."""
    k_negative: float = Field(default=3.0, ge=0, le=100)
    """Exponent k where the advantage is negative."""
    lambda_negative: float = Field(default=2.0, gt=0, le=100)
    """Decay λ where the advantage is negative."""

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Compute -w^k * exp(λ * (1 - w)) * A * log-probability, with the ratio w of the response without gradient."""
        bounded = tokens.log_ratio.detach().clamp(-_LARGEST_LOG, _LARGEST_LOG)
        log_weight = tokens.sum_per_response(bounded).clamp(_LEAST_LOG, _LARGEST_LOG)
        is_positive = tokens.advantages >= 0
        exponent = tokens.advantages.new_full((), self.k_positive).where(is_positive, self.k_negative)
        decay = tokens.advantages.new_full((), self.lambda_positive).where(is_positive, self.lambda_negative)
        weights = (exponent * log_weight + decay * (1.0 - log_weight.exp())).exp()
        return TokenLosses(-weights * tokens.advantages * tokens.log_probs)
