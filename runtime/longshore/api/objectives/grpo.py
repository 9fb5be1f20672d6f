"""GRPO."""

from typing import Literal

from longshore.api.objectives.objective import ClippedObjective


class Grpo(ClippedObjective):
    """Group relative policy optimisation: rewards normalised within the group of a prompt, ratios of tokens.

    DeepSeekMath (arXiv 2402.03300), section 4.1. Losses are averaged over all tokens of an update, so a long response
    weighs more than a short one; with `aggregation: SequenceMean` over responses first, as in the paper. The usual
    choice.
    """

    name: Literal["GRPO"] = "GRPO"
