"""GPG."""

from typing import Literal

from longshore.api.objectives.advantages import Estimator
from longshore.api.objectives.objective import LossTokens, Objective, TokenLosses


class Gpg(Objective):
    """Plain policy gradient with the group's mean as baseline: no ratio, no clip.

    Group Policy Gradient (arXiv 2504.02546), without the factor for batches in which groups have no signal:
    `dynamicSampling` replaces those. For one update per rollout; nothing corrects for tokens of other weights.
    """

    name: Literal["GPG"] = "GPG"
    advantage: Estimator = Estimator.CENTRED

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Compute -A * log-probability."""
        return TokenLosses(-tokens.advantages * tokens.log_probs)
