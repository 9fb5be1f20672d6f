"""SAPO."""

from typing import Literal

from pydantic import Field

from longshore.api.objectives.aggregation import Aggregation
from longshore.api.objectives.objective import LossTokens, Objective, TokenLosses


class Sapo(Objective):
    """GRPO with a smooth gate in place of the clip: the gradient of a token fades as its ratio leaves 1.

    Soft Adaptive Policy Optimization (arXiv 2511.20347). Suits models whose ratios are noisy, as
    GSPO does, without leaving out a whole response for a few of its tokens.
    """

    name: Literal["SAPO"] = "SAPO"
    aggregation: Aggregation = Aggregation.SEQUENCE_MEAN
    temperature_positive: float = Field(default=1.0, gt=0, le=100)
    """Steepness τ of the gate where the advantage is positive."""
    temperature_negative: float = Field(default=1.05, gt=0, le=100)
    """Steepness τ of the gate where the advantage is not positive."""

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Compute -4 / τ * sigmoid(τ * (ratio - 1)) * A."""
        positive = tokens.advantages.new_full((), self.temperature_positive)
        steepness = positive.where(tokens.advantages > 0, self.temperature_negative)
        gate = 4.0 / steepness * (steepness * (tokens.ratio - 1.0)).sigmoid()
        return TokenLosses(-gate * tokens.advantages)
