"""Dr. GRPO."""

from typing import Literal

from longshore.api.objectives.advantages import Estimator
from longshore.api.objectives.aggregation import Aggregation
from longshore.api.objectives.objective import ClippedObjective


class DrGrpo(ClippedObjective):
    """GRPO without division by deviation or length, which favour very easy and very hard prompts, and long responses.

    Understanding R1-Zero-Like Training (arXiv 2503.20783), section 3.2. Losses are divided by the number of responses
    times maxResponseTokens.
    """

    name: Literal["DrGRPO"] = "DrGRPO"
    advantage: Estimator = Estimator.CENTRED
    aggregation: Aggregation = Aggregation.CONSTANT_LENGTH
