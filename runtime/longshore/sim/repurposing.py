"""Carries out what the scale-down rule decides: requests migrate, replicas of the trainer wake up."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from longshore.api.round_status import RoundKind
from longshore.policy.benefit_gate import BenefitGate, StepOutcome
from longshore.policy.length_distribution import LengthDistribution
from longshore.policy.progress import RoundProgress
from longshore.policy.rollout_pace import RolloutPace
from longshore.policy.scale_down import (
    AdaptiveRule,
    Benefit,
    Milestones,
    RolloutEngine,
    RunningRequest,
    ScaleDown,
    decide,
    rollout_load,
)
from longshore.rounds.protocol import RoundTotals
from longshore.sim.events import EventQueue
from longshore.sim.fleet import SimFleet
from longshore.sim.job import SimJob
from longshore.sim.phases import StreamedTraining
from longshore.sim.round import SimRound

_NOT_WEIGHED: Final = Benefit(None, None, is_wanted=True)


class SimRepurposing:
    """One object per job; it knows the lengths of earlier rounds of each kind."""

    def __init__(self, job: SimJob, training: StreamedTraining, queue: EventQueue) -> None:
        self._job = job
        self._training = training
        self._queue = queue
        self._pod_of = {gpu: pod for pod, gpus in enumerate(job.gpus.pods()) for gpu in gpus}
        self._replicas = [frozenset(self._pod_of[gpu] for gpu in replica) for replica in training.shape.replicas]
        self._lengths: dict[RoundKind, LengthDistribution] = defaultdict(LengthDistribution)
        self._is_fixed = job.trainer.scale_down_at is not None
        self._gate = BenefitGate() if job.trainer.weighs_benefit and not self._is_fixed else None
        self.pace: RolloutPace | None = None
        """Pace of the round that runs, where it is measured."""
        self.reasons: list[str] = []
        """Reasons of the decisions in this round."""

    def begin_round(self, tp_size: int) -> Milestones | None:
        """Begin a round; return the moments at which to look whether to repurpose pods, if any."""
        self.reasons, self.pace = [], None
        if not self._training.is_streamed:
            return None
        self.pace = self._gate.begin_round(tp_size) if self._gate is not None else None
        return Milestones(self._job.trainer.scale_down_at)

    def milestone(self, this_round: SimRound, fleet: SimFleet, progress: RoundProgress) -> None:
        """Measure and decide, as coordinator and operator do."""
        engines = [
            RolloutEngine(number, self._pods_of(gpus), len(gpus), fleet.engines[number].kv_capacity_tokens)
            for number, gpus in fleet.gpus.items()
        ]
        running = [
            RunningRequest(number, request.prompt_tokens, tokens)
            for number, engine in fleet.engines.items()
            for request, tokens in engine.tokens_at(self._queue.now_s)
        ]
        load = rollout_load(progress, engines, running, self._lengths[progress.kind], self._job.lengths.max_tokens)
        benefit = _NOT_WEIGHED if self._gate is None else self._gate.expect(progress.kind, load, self._replicas)
        rule = None if self._is_fixed else AdaptiveRule(benefit)
        sets = [frozenset(engine.pods) for engine in engines]
        decision = decide(progress.fraction_finished, load.pods, self._replicas, load.peak_tokens, rule, sets)
        if isinstance(decision, ScaleDown):
            self.reasons.append(decision.reason)
            self._carry_out(decision, this_round, fleet)

    def round_ended(self, kind: RoundKind, num_tokens: Iterable[int]) -> None:
        """Learn from the lengths of the responses that finished in the round."""
        self._lengths[kind].extend(num_tokens)

    def step_ended(self, totals: RoundTotals, step_s: float) -> None:
        """Learn from the step of the round, which is over."""
        if self._gate is not None and self._training.is_streamed:
            done = self._training.work
            self._gate.ended(
                StepOutcome(
                    kind=totals.end.kind,
                    step_s=step_s,
                    batch_tokens=done.num_tokens,
                    streamed_tokens=done.streamed_tokens,
                    num_replicas=len(self._replicas),
                    tokens_per_s=done.tokens_per_s,
                    num_awake=done.num_awake,
                    wake_s=self._training.wake_s,
                )
            )

    def _pods_of(self, gpus: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted({self._pod_of[gpu] for gpu in gpus}))

    def _carry_out(self, decision: ScaleDown, this_round: SimRound, fleet: SimFleet) -> None:
        pods = set(decision.pods)
        engines = [number for number, gpus in fleet.gpus.items() if pods.issuperset(self._pods_of(gpus))]
        gpus = [gpu for gpu, pod in self._pod_of.items() if pod in pods]
        decided_s = self._queue.now_s
        this_round.retire(engines, on_emptied=lambda: self._training.repurpose(gpus, decided_s))
