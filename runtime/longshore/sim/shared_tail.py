"""Moves the rest of a round to the GPUs that a job does not share, and notes when the shared ones were free."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from longshore.api.round_status import RoundKind
from longshore.policy.length_distribution import LengthDistribution
from longshore.policy.progress import RoundProgress
from longshore.policy.scale_down import RolloutEngine, RunningRequest, rollout_load
from longshore.policy.shared_tail import TailMilestones, tail_fits
from longshore.sim.events import EventQueue
from longshore.sim.fleet import SimFleet
from longshore.sim.job import SimJob
from longshore.sim.round import SimRound

_NO_POD: Final = 0
"""Engines move one by one, whatever pods they are in."""


class SimTail:
    """One object per job; it knows the lengths of earlier rounds of each kind."""

    def __init__(self, job: SimJob, queue: EventQueue) -> None:
        assert job.num_own_gpus is not None, "the job shares nothing"
        self._num_own_gpus = job.num_own_gpus
        self._max_tokens = job.lengths.max_tokens
        self._queue = queue
        self._lengths: dict[RoundKind, LengthDistribution] = defaultdict(LengthDistribution)
        self.free_at_s: float | None = None
        """When no engine needed the shared GPUs any more, in this round."""

    def begin_round(self) -> TailMilestones:
        """When to look in the round that starts."""
        self.free_at_s = None
        return TailMilestones()

    def milestone(self, this_round: SimRound, fleet: SimFleet, progress: RoundProgress) -> None:
        """Measure and decide, as a coordinator would."""
        engines = [
            RolloutEngine(number, _NO_POD, len(gpus), fleet.kv_capacity_tokens) for number, gpus in fleet.gpus.items()
        ]
        running = [
            RunningRequest(number, request.prompt_tokens, tokens)
            for number, engine in fleet.engines.items()
            for request, tokens in engine.tokens_at(self._queue.now_s)
        ]
        load = rollout_load(progress, engines, running, self._lengths[progress.kind], self._max_tokens)
        own = {number for number, gpus in fleet.gpus.items() if max(gpus) < self._num_own_gpus}
        if tail_fits(load, own):
            this_round.retire([number for number in fleet.numbers if number not in own], self._are_free)

    def round_ended(self, kind: RoundKind, num_tokens: Iterable[int]) -> None:
        """Lengths of the responses that finished in the round."""
        self._lengths[kind].extend(num_tokens)

    def _are_free(self) -> None:
        self.free_at_s = self._queue.now_s
