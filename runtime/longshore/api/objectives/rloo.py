"""RLOO."""

from collections.abc import Sequence
from typing import Literal

from longshore.api.objectives.advantages import Advantages, Rewards, leave_one_out
from longshore.api.objectives.aggregation import Aggregation
from longshore.api.objectives.objective import ClippedObjective


class Rloo(ClippedObjective):
    """REINFORCE on whole responses, with the mean of a response's siblings as its baseline.

    Back to Basics (arXiv 2402.14740). On-policy, the gradient is A times that of the response's log-probability; the
    clipped ratio of tokens keeps a second update on the same rollout from running away.
    """

    name: Literal["RLOO"] = "RLOO"

    @property
    def loss_aggregation(self) -> Aggregation:
        """Return the sum over the tokens of a response, and the mean over responses."""
        return Aggregation.SEQUENCE_SUM

    def advantages(self, groups: Sequence[Rewards]) -> list[Advantages]:
        """Compute r - mean of the other responses of the group."""
        return [leave_one_out(rewards) for rewards in groups]
