"""Imitation: the loss of supervised steps, which no job chooses as its objective."""

from longshore.api.objectives.objective import LossTokens, Objective, TokenLosses


class Imitation(Objective):
    """Likelihood of responses that others have written."""

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Compute the negative log-probability."""
        return TokenLosses(-tokens.log_probs)
