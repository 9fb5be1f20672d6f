"""GMPO."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from longshore.api.objectives.aggregation import Aggregation
from longshore.api.objectives.objective import ClipRange, LossTokens, TokenLosses

if TYPE_CHECKING:
    from torch import Tensor


class Gmpo(ClipRange):
    """GRPO with the geometric mean of a response's ratios, which outliers move far less than the arithmetic one.

    Geometric-Mean Policy Optimization (arXiv 2507.20673). Each token's ratio is clipped, in
    logarithms and so widely that exploration goes on, before the mean is taken.
    """

    name: Literal["GMPO"] = "GMPO"
    clip_low: float = Field(default=0.4, gt=0, le=1_000)
    clip_high: float = Field(default=0.4, gt=0, le=1_000)
    aggregation: Aggregation = Aggregation.SEQUENCE_MEAN

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Compute -exp(mean over the response of the clipped log-ratios) * A."""
        sign, log_ratio = tokens.advantages.sign(), tokens.log_ratio
        bounded = log_ratio.clamp(-self.clip_low, self.clip_high)
        kept = sign * (sign * log_ratio).minimum(sign * bounded)
        return TokenLosses(-tokens.mean_per_response(kept).exp() * tokens.advantages, kept != log_ratio)

    def importance_ratio(self, tokens: LossTokens) -> "Tensor":
        """Return the ratio of the response."""
        return tokens.mean_per_response(tokens.log_ratio).exp()
