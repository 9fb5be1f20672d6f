"""Dr. GRPO."""

from collections.abc import Sequence
from typing import Literal

from longshore.api.objectives.advantages import Advantages, Rewards, centred
from longshore.api.objectives.aggregation import Aggregation
from longshore.api.objectives.objective import ClippedObjective


class DrGrpo(ClippedObjective):
    """GRPO without division by deviation or length, which favour very easy and very hard prompts, and long responses.

    Understanding R1-Zero-Like Training (arXiv 2503.20783), section 3.2. Losses are divided by the number of responses
    times maxResponseTokens.
    """

    name: Literal["DrGRPO"] = "DrGRPO"

    @property
    def loss_aggregation(self) -> Aggregation:
        """Return the sum over all tokens / (number of responses * maxResponseTokens)."""
        return Aggregation.CONSTANT_LENGTH

    def advantages(self, groups: Sequence[Rewards]) -> list[Advantages]:
        """Compute r - mean within each group."""
        return [centred(rewards) for rewards in groups]
