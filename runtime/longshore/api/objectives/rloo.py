"""RLOO."""

from typing import Literal

from longshore.api.objectives.advantages import Estimator
from longshore.api.objectives.aggregation import Aggregation
from longshore.api.objectives.objective import ClippedObjective


class Rloo(ClippedObjective):
    """REINFORCE on whole responses, with the mean of a response's siblings as its baseline.

    Back to Basics (arXiv 2402.14740). On-policy, the gradient is A times that of the response's log-probability; the
    clipped ratio of tokens keeps a second update on the same rollout from running away.
    """

    name: Literal["RLOO"] = "RLOO"
    advantage: Estimator = Estimator.LEAVE_ONE_OUT
    aggregation: Aggregation = Aggregation.SEQUENCE_SUM
