"""REINFORCE++."""

from typing import Literal

from longshore.api.objectives.advantages import Estimator
from longshore.api.objectives.objective import ClippedObjective


class ReinforcePlusPlus(ClippedObjective):
    """REINFORCE with rewards centred in the group, and whitened over all tokens of the batch.

    REINFORCE++ (arXiv 2501.03262), with baseline; `advantage: Whitened` is the one without. Also for
    `responsesPerPrompt: 1`, where both are one. No advantage is known before the last group, so a step makes one update
    after the round.
    """

    name: Literal["ReinforcePlusPlus"] = "ReinforcePlusPlus"
    advantage: Estimator = Estimator.CENTRED_WHITENED
