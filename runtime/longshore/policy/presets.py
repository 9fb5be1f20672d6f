"""Round policies by the name that a user gives."""

from longshore.api.rollout import Rollout, Strategy
from longshore.policy.draws import DrawCursor
from longshore.policy.partial_rollout import PartialRollout
from longshore.policy.round_policy import BatchShape, RoundPolicy
from longshore.policy.synchronous import Synchronous
from longshore.policy.tail_batching import TailBatching


def round_policy(rollout: Rollout, shape: BatchShape, cursor: DrawCursor) -> RoundPolicy:
    """The round policy of a job."""
    match rollout.strategy:
        case Strategy.SYNCHRONOUS:
            return Synchronous(shape, cursor)
        case Strategy.TAIL_BATCHING:
            return TailBatching(shape, cursor, rollout.tail_batching)
        case Strategy.PARTIAL_ROLLOUT:
            return PartialRollout(shape, cursor, rollout.partial_rollout)
