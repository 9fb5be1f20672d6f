"""CISPO."""

from typing import Literal

from pydantic import Field

from longshore.api.objectives.objective import ClipRange, LossTokens, TokenLosses


class Cispo(ClipRange):
    """REINFORCE whose weights, the ratios, are clipped instead of the loss, so that every token keeps a gradient.

    MiniMax-M1 (arXiv 2506.13585), equations 4 and 5, without a lower bound; the upper one is ScaleRL's (arXiv
    2510.13786). Suits several updates per rollout and tokens of older weights, which a clipped loss would leave out.
    Weights also correct for what engine and trainer differ by; `rolloutCorrection` separates the two.
    """

    name: Literal["CISPO"] = "CISPO"
    clip_low: float = Field(default=1.0, gt=0, le=1_000)
    clip_high: float = Field(default=4.0, gt=0, le=1_000)

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Compute -clip(ratio) * A * log-probability, with weights that have no gradient."""
        ratio = tokens.ratio.detach()
        weights = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        return TokenLosses(-weights * tokens.advantages * tokens.log_probs, weights != ratio)
