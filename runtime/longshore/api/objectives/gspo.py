"""GSPO."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from longshore.api.objectives.aggregation import Aggregation
from longshore.api.objectives.objective import ClippedObjective, LossTokens, TokenLosses

if TYPE_CHECKING:
    from torch import Tensor


class Gspo(ClippedObjective):
    """Group sequence policy optimisation: one ratio for a whole response, the geometric mean of its tokens' ratios.

    GSPO (arXiv 2507.18071), equations 5 to 7. That ratio varies far less than those of tokens, so its clips are of
    section 5.1, and it is relative to the trainer's own log-probabilities at the start of the step. Suits models with
    experts, whose routing makes ratios of tokens noisy. With `aggregation: SequenceSum` it is LUSPO (arXiv 2602.05261),
    in which long responses are not made shorter.
    """

    name: Literal["GSPO"] = "GSPO"
    clip_low: float = Field(default=3e-4, gt=0, le=1_000)
    clip_high: float = Field(default=4e-4, gt=0, le=1_000)
    aggregation: Aggregation = Aggregation.SEQUENCE_MEAN

    @property
    def compares_with_trainer(self) -> bool:
        """Return True: clips of a few ten-thousandths are what rounding alone moves the ratio by."""
        return True

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Compute -min(s * A, clip(s) * A), with the ratio s of the response.

        Each token's gradient is its own (GSPO-token, section 4.3), so that a weight of one token scales that alone.
        """
        log_ratio = tokens.mean_per_response(tokens.log_ratio.detach())
        own = tokens.log_probs - tokens.log_probs.detach()
        return self.clipped((log_ratio + own).exp(), tokens.advantages)

    def importance_ratio(self, tokens: LossTokens) -> "Tensor":
        """Return the ratio of the response."""
        return tokens.mean_per_response(tokens.log_ratio).exp()
