"""DRO."""

from typing import Literal

from pydantic import Field

from longshore.api.objectives.objective import LossTokens, Objective, TokenLosses


class Dro(Objective):
    """Plain policy gradient with a quadratic penalty on the way from the weights that sampled, in place of a clip.

    Direct Reward Optimisation (arXiv 2405.19107), in the form by token of verl. Suits data of older weights: it needs
    no importance ratio.
    """

    name: Literal["DRO"] = "DRO"
    beta: float = Field(default=1.0, gt=0, le=1_000)
    """Weight β of the quadratic penalty."""

    @property
    def trains_without_advantage(self) -> bool:
        """Return True: the penalty does not depend on the advantage."""
        return True

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Compute -A * log-probability + β / 2 * log(ratio)²."""
        return TokenLosses(0.5 * self.beta * tokens.log_ratio.square() - tokens.advantages * tokens.log_probs)
