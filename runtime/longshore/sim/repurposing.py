"""Carries out what the scale-down rule decides: requests migrate, replicas of the trainer wake up."""

from collections import defaultdict
from collections.abc import Iterable

from longshore.api.runtime_status import RoundKind
from longshore.policy.length_distribution import LengthDistribution
from longshore.policy.progress import RoundProgress
from longshore.policy.scale_down import Milestones, RolloutEngine, RunningRequest, ScaleDown, decide, rollout_load
from longshore.sim.events import EventQueue
from longshore.sim.fleet import Fleet
from longshore.sim.job import SimJob
from longshore.sim.phases import StreamedTraining
from longshore.sim.round import SimRound


class Repurposing:
    """One object per job; it knows the lengths of earlier rounds of each kind."""

    def __init__(self, job: SimJob, training: StreamedTraining, queue: EventQueue) -> None:
        self._job = job
        self._training = training
        self._queue = queue
        self._pod_of = {gpu: pod for pod, gpus in enumerate(job.gpus.pods()) for gpu in gpus}
        self._replicas = [frozenset(self._pod_of[gpu] for gpu in replica) for replica in training.shape.replicas]
        self._lengths: dict[RoundKind, LengthDistribution] = defaultdict(LengthDistribution)
        self.reasons: list[str] = []
        """Of what was decided in this round."""

    def begin_round(self) -> Milestones:
        """When to look in the round that starts."""
        self.reasons = []
        return Milestones(self._job.trainer.scale_down_at)

    def milestone(self, this_round: SimRound, fleet: Fleet, progress: RoundProgress) -> None:
        """Measure and decide, as coordinator and operator do."""
        engines = [
            RolloutEngine(number, self._pod_of[gpus[0]], len(gpus), fleet.engines[number].kv_capacity_tokens)
            for number, gpus in fleet.gpus.items()
        ]
        running = [
            RunningRequest(number, request.prompt_tokens, tokens)
            for number, engine in fleet.engines.items()
            for request, tokens in engine.tokens_at(self._queue.now_s)
        ]
        load = rollout_load(progress, engines, running, self._lengths[progress.kind], self._job.lengths.max_tokens)
        is_fixed = self._job.trainer.scale_down_at is not None
        max_kv_peak = None if is_fixed else self._job.rollout.repurposing.max_kv_peak
        decision = decide(progress.fraction_finished, load.pods, self._replicas, load.peak_tokens, max_kv_peak)
        if isinstance(decision, ScaleDown):
            self.reasons.append(decision.reason)
            self._carry_out(decision, this_round, fleet)

    def round_ended(self, kind: RoundKind, num_tokens: Iterable[int]) -> None:
        """Lengths of the responses that finished in the round."""
        self._lengths[kind].extend(num_tokens)

    def _carry_out(self, decision: ScaleDown, this_round: SimRound, fleet: Fleet) -> None:
        pods = set(decision.pods)
        engines = [number for number, gpus in fleet.gpus.items() if self._pod_of[gpus[0]] in pods]
        gpus = [gpu for gpu, pod in self._pod_of.items() if pod in pods]
        this_round.retire(engines, on_drained=lambda: self._training.repurpose(gpus))
