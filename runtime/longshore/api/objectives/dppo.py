"""DPPO."""

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field

from longshore.api.objectives.objective import LossTokens, Objective, TokenLosses

if TYPE_CHECKING:
    from torch import Tensor

_TINY: Final = 1e-8


class Divergence(StrEnum):
    """How far two probabilities of a token are apart, each against all other tokens."""

    TOTAL_VARIATION = "TotalVariation"
    KL = "KL"


class Dppo(Objective):
    """REINFORCE in which a token is left out once its *probability* moved far with the advantage, not its ratio.

    Divergence PPO (arXiv 2602.04879). A clipped ratio leaves out unlikely tokens too early, and likely ones too late.
    With `driftPenalty: 0.001` and a large `maxRatio` it has the gradient of the default loss of prime-rl.
    """

    name: Literal["DPPO"] = "DPPO"
    divergence: Divergence = Divergence.TOTAL_VARIATION
    """How probabilities are compared. TotalVariation: their difference. KL: that of two-valued distributions."""
    divergence_low: float = Field(default=0.2, gt=0, le=100)
    """Largest divergence of a token that became less likely, where the advantage is not positive."""
    divergence_high: float = Field(default=0.2, gt=0, le=100)
    """Largest divergence of a token that became more likely, where the advantage is positive."""
    max_ratio: float = Field(default=20.0, gt=1, le=1e9)
    """Largest importance ratio by which a token is weighted."""
    drift_penalty: float = Field(default=0.0, ge=0, le=100)
    """Weight of log(ratio)², which is added to the loss of every token (Kimi K2.5, arXiv 2602.02276)."""

    @property
    def trains_without_advantage(self) -> bool:
        """Return whether there is a penalty, which does not depend on the advantage."""
        return self.drift_penalty > 0

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Compute -min(ratio, maxRatio) * A * log-probability, or 0 if it diverged; plus driftPenalty * log(ratio)².

        Weights have no gradient.
        """
        ratio = tokens.ratio.detach()
        is_kept = self._stays(tokens)
        policy = -ratio.clamp(max=self.max_ratio) * is_kept * tokens.advantages * tokens.log_probs
        drift = self.drift_penalty * tokens.log_ratio.square() if self.drift_penalty else 0.0
        return TokenLosses(policy + drift, ~is_kept | (ratio > self.max_ratio))

    def _stays(self, tokens: LossTokens) -> "Tensor":
        """Return which tokens have not moved too far in the direction of their advantage."""
        log_new, log_old = tokens.log_probs.detach(), tokens.old_log_probs
        new, old = log_new.exp(), log_old.exp()
        moved = new - old
        if self.divergence is Divergence.TOTAL_VARIATION:
            return (moved <= self.divergence_high).where(tokens.advantages > 0, moved >= -self.divergence_low)
        apart = old * (log_old - log_new) + (1.0 - old) * ((1.0 - old + _TINY) / (1.0 - new + _TINY)).log()
        stays_below = (apart <= self.divergence_high) | (moved <= 0)
        stays_above = (apart <= self.divergence_low) | (moved >= 0)
        return stays_below.where(tokens.advantages > 0, stays_above)
