"""REINFORCE++."""

from collections.abc import Sequence
from typing import Literal

from longshore.api.objectives.advantages import Advantages, Rewards, whitened
from longshore.api.objectives.objective import ClippedObjective, NormalisedObjective


class ReinforcePlusPlus(NormalisedObjective, ClippedObjective):
    """REINFORCE with rewards centred in the group and divided by their deviation over the whole batch.

    REINFORCE++ (arXiv 2501.03262), with baseline; each response counts once in the deviation, whatever its length. It
    alone trains with `responsesPerPrompt: 1`, where it is REINFORCE++ without baseline: rewards are centred in the
    batch. No advantage is known before the last group, so a step makes one update after the round.
    """

    name: Literal["ReinforcePlusPlus"] = "ReinforcePlusPlus"

    @property
    def needs_whole_batch(self) -> bool:
        """Return True: the deviation is that of the batch."""
        return True

    @property
    def compares_siblings(self) -> bool:
        """Return False: single responses are compared within the batch."""
        return False

    def advantages(self, groups: Sequence[Rewards]) -> list[Advantages]:
        """Compute (r - mean of the group) / (deviation of the batch + advantageEpsilon)."""
        return whitened(groups, self.advantage_epsilon)
