"""When the rest of a round fits the GPUs that a job does not share, so that the shared ones become free.

A round's last requests need few engines, and they take most of its time. They move to the engines of the job's own GPUs
as soon as the KV caches of these hold them until they end. The job needs the shared GPUs again to train.
"""

from collections.abc import Collection
from typing import Final

from longshore.policy.progress import RoundProgress
from longshore.policy.scale_down import MAX_KV_PEAK, MilestoneLoad, Milestones

_CHECK_EVERY_SHARE: Final = 0.01
"""Requests that must have finished between two checks."""


class TailMilestones(Milestones):
    """The moments of one round at which its rest may move."""

    def __init__(self) -> None:
        super().__init__()
        self._num_finished = 0
        self._is_over = False

    def is_due(self, progress: RoundProgress) -> bool:
        """Return whether to look now; the next look is then due later."""
        num_more = progress.num_finished - self._num_finished
        if self._is_over or progress.num_held or num_more < _CHECK_EVERY_SHARE * progress.num_requests:
            return False
        self._num_finished = progress.num_finished
        return True

    def close(self) -> None:
        """Note that the rest has moved, which happens once in a round."""
        self._is_over = True


def tail_fits(load: MilestoneLoad, own_engines: Collection[int]) -> bool:
    """Return whether the KV caches of these engines hold what runs, and what is still to be launched, until it ends."""
    capacity_tokens = sum(engine.kv_capacity_tokens for engine in load.engines if engine.number in own_engines)
    return load.peak_tokens <= MAX_KV_PEAK * capacity_tokens
