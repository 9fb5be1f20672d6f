"""Carry out what the operator decides within a round.

Engines give their requests away and sleep, and trainer replicas wake in their pods (RollPacker, section 4.4 and
Algorithm 1). This module decides nothing itself.
"""

import queue
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from longshore.api import round_status
from longshore.api.round_status import RepurposingBenefit, RoundKind
from longshore.api.status import Assignment, Overlay
from longshore.policy.benefit_gate import BenefitGate
from longshore.policy.length_distribution import LengthDistribution
from longshore.policy.overlays import RoundState, refusal
from longshore.policy.progress import RoundProgress
from longshore.policy.rollout_pace import RolloutPace
from longshore.policy.scale_down import (
    Benefit,
    MilestoneLoad,
    Milestones,
    RolloutEngine,
    RunningRequest,
    rollout_load,
)
from longshore_runtime.clock import Clock
from longshore_runtime.errors import TrainerLost
from longshore_runtime.rollout.engine_pool import EnginePool
from longshore_runtime.rollout.events import AssignmentChanged, Event, LoadMeasured, PodsRepurposed
from longshore_runtime.rollout.round_runner import RoundRunner
from longshore_runtime.trainer.group import TrainerGroup

log = structlog.get_logger()

_ANSWER_LIMIT_S: Final = 10.0
"""Seconds to wait for the lengths of an engine's requests; without them, the milestone is skipped."""
_SLEEP_LIMIT_S: Final = 120.0
_WAKE_LIMIT_S: Final = 300.0


class ElasticReport(Protocol):
    """Receiver of reports about assignments."""

    def milestone(
        self, progress: RoundProgress, load: round_status.RolloutLoad, benefit: RepurposingBenefit | None
    ) -> None:
        """Report how full the engines are and will be, so that the operator may repurpose pods.

        Args:
            benefit: what that is expected to change; None if it is not known.
        """

    def applied(self, epoch: int, trainer_pods: tuple[int, ...]) -> None:
        """Report that an assignment has been carried out."""

    def rejected(self, epoch: int, reason: str) -> None:
        """Report that an assignment was refused."""


@dataclass(frozen=True)
class RepurposingOptions:
    """Settings that do not change from round to round."""

    attempt: int
    max_response_tokens: int
    fixed_fraction: float | None
    """Share of the batch's groups at the only milestone; None: every 5 % of finished requests from 20 % to 50 %."""

    @property
    def is_gated(self) -> bool:
        """Whether pods leave only if that is expected to end the step sooner."""
        return self.fixed_fraction is None


@dataclass(frozen=True)
class RepurposingTimes:
    """Times and counts of a repurposing."""

    control_path_s: float
    """Seconds from the newest telemetry before the assignment to its acknowledgement."""
    apply_s: float
    """Seconds, within the control path, from the assignment's arrival until the trainer replicas were awake."""
    num_moved: int
    """Number of requests that continued on other engines."""
    num_awake: int = 0
    """Number of trainer replicas that woke."""
    saved_s: float | None = None
    """Seconds saved in the step, against the same round with all engines; None: not measured, or not known."""


class Repurposing:
    """Repurposing of pods in one round."""

    def __init__(
        self,
        options: RepurposingOptions,
        number: int,
        engines: EnginePool,
        trainers: TrainerGroup,
        lengths: Mapping[RoundKind, LengthDistribution],
        report: ElasticReport,
        events: "queue.SimpleQueue[Event]",
        work: Executor,
        clock: Clock,
        replicas_awake: Callable[[tuple[int, ...]], None],
        *,
        answered_epoch: int,
        gate: BenefitGate | None = None,
    ) -> None:
        """Prepare the repurposing of one round.

        Args:
            number: number of the round.
            lengths: lengths of earlier rounds by kind.
            work: runs what takes time, one call at a time.
            gate: says whether repurposing pays; None: it is not asked.
            answered_epoch: newest assignment that has been answered; this and older ones are ignored.
        """
        self._options = options
        self._number = number
        self._engines, self._trainers = engines, trainers
        self._lengths = lengths
        self._report = report
        self._events = events
        self._work = work
        self._clock = clock
        self._replicas_awake = replicas_awake
        self.milestones = Milestones(options.fixed_fraction)
        """Milestones of the round."""
        self.pace: RolloutPace | None = gate.begin_round(engines.tp_size) if gate is not None else None
        """Pace of the engines of the round, where it matters."""
        self._gate = gate
        self._runner: RoundRunner | None = None
        self._milestone: RoundProgress | None = None
        """Newest milestone of the round."""
        self._reported_s = self._arrived_s = 0.0
        self._epoch = answered_epoch
        self._overlay: Overlay | None = None
        self.answered_overlay: Overlay | None = None
        """Newest overlay that was carried out or refused."""
        self._leaving: tuple[int, ...] = ()
        """Engines of the pods that leave the rollout."""
        self._measuring: list[Future[None]] = []
        self._repurposed: Future[PodsRepurposed] | None = None
        self.times: RepurposingTimes | None = None
        """Times of the repurposing of this round, if there was one."""

    @property
    def answered_epoch(self) -> int:
        """Newest assignment whose overlay was carried out or refused."""
        return self._epoch

    @property
    def trainer_pods(self) -> tuple[int, ...]:
        """Pods that left the rollout for the rest of the round: they train, or idle in a set that does."""
        return tuple(self._overlay.trainer_pods) if self._overlay is not None else ()

    def begin(self, runner: RoundRunner) -> None:
        """Note that the round is about to start."""
        self._runner = runner

    def milestone(self, progress: RoundProgress) -> None:
        """Ask the engines what they hold."""
        self._milestone = progress
        self._measuring.append(self._work.submit(self._measure, progress))

    def on_event(self, event: Event) -> None:
        """Handle assignments, and what this module has put into the driver's events."""
        match event:
            case LoadMeasured(sender=sender, load=load) if sender is self:
                self._measured(load)
            case AssignmentChanged(assignment=assignment):
                self._assigned(assignment)
            case PodsRepurposed(sender=sender) if sender is self:
                self._finished(event)

    def finish(self) -> None:
        """End the round: wait for work in progress, and raise its errors."""
        for measuring in self._measuring:
            measuring.result()
        if self._repurposed is not None and self.times is None:
            self._finished(self._repurposed.result())

    @property
    def _running(self) -> RoundRunner:
        assert self._runner is not None, "begin comes first"
        return self._runner

    def _assigned(self, assignment: Assignment) -> None:
        overlay = assignment.overlay
        if overlay is None or assignment.epoch <= self._epoch:
            return
        self._epoch = assignment.epoch
        if overlay == self.answered_overlay:
            return  # Something else of the assignment has changed, such as the size of the job.
        self.answered_overlay = overlay
        if reason := refusal(overlay, self._state()):
            self._report.rejected(assignment.epoch, reason)
            return
        log.info("pods leave the rollout", pods=overlay.trainer_pods, reason=assignment.reason)
        self._arrived_s = self._clock.now_s()
        self._overlay = overlay
        self._leaving = self._engines.engines_on(overlay.trainer_pods)
        self._running.retire(self._leaving, self._emptied)

    def _state(self) -> RoundState:
        engines = tuple(frozenset(self._engines.pods_of(engine)) for engine in self._engines.serving())
        return RoundState(
            number=self._number,
            attempt=self._options.attempt,
            has_batch=self._running.has_batch,
            trainer_pods=self.trainer_pods,
            rollout_pods=frozenset().union(*engines),
            trainer_replicas=self._replicas(),
            engines=engines,
        )

    def _replicas(self) -> tuple[frozenset[int], ...]:
        """Return the worker pods that each trainer replica spans."""
        return tuple(frozenset(self._trainers.pods_of(one)) for one in range(self._trainers.num_replicas))

    def _emptied(self) -> None:
        self._repurposed = self._work.submit(self._carry_out, self.trainer_pods)

    def _carry_out(self, pods: tuple[int, ...]) -> PodsRepurposed:
        """Free the GPUs of pods and wake their trainers; runs in a separate thread, because that takes seconds."""
        replicas = self._trainers.replicas_on(pods)
        error = None
        try:
            self._engines.release(self._leaving, _SLEEP_LIMIT_S)
            self._trainers.wake(replicas, timeout_s=_WAKE_LIMIT_S)
        except TrainerLost as loss:
            error = str(loss)
        event = PodsRepurposed(self, pods, replicas, error)
        self._events.put(event)
        return event

    def _finished(self, event: PodsRepurposed) -> None:
        if self.times is not None:
            return
        now_s = self._clock.now_s()
        self.times = RepurposingTimes(
            control_path_s=now_s - self._reported_s,
            apply_s=now_s - self._arrived_s,
            num_moved=self._running.num_moved,
            num_awake=len(event.replicas) if event.error is None else 0,
        )
        if event.error is not None:
            self._report.rejected(self._epoch, event.error)
            return
        self._report.applied(self._epoch, event.pods)
        if not self._running.has_batch:
            self._replicas_awake(event.replicas)

    def _measured(self, load: MilestoneLoad | None) -> None:
        if load is None or self._overlay is not None:
            return
        self._reported_s = self._clock.now_s()
        assert self._milestone is not None
        progress, benefit = self._milestone, None
        if self._gate is not None:
            benefit = self._gate.expect(progress.kind, load, self._replicas())
        self._report.milestone(progress, _reported(load), _reported_benefit(benefit) if benefit is not None else None)

    def _measure(self, progress: RoundProgress) -> None:
        """Measure the load; runs in a separate thread, because engines answer between two steps."""
        load = self._load(progress)
        self._events.put(LoadMeasured(self, load))

    def _load(self, progress: RoundProgress) -> MilestoneLoad | None:
        engines, stats = self._engines, self._engines.stats()
        live = engines.live(_ANSWER_LIMIT_S)
        if not live or live.keys() != stats.keys():
            return None
        sampling = [
            RolloutEngine(
                engine, engines.pods_of(engine), engines.num_gpus_of(engine), stats[engine].kv_capacity_tokens
            )
            for engine in live
        ]
        running = [
            RunningRequest(engine, one.prompt_tokens, one.generated_tokens)
            for engine, responses in live.items()
            for one in responses
        ]
        lengths = self._lengths[progress.kind]
        return rollout_load(progress, sampling, running, lengths, self._options.max_response_tokens)


def _reported(load: MilestoneLoad) -> round_status.RolloutLoad:
    pods = [
        round_status.PodLoad(
            pod=pod.pod,
            gpus=pod.num_gpus,
            kv_capacity_tokens=pod.kv_capacity_tokens,
            running_tokens=pod.num_tokens,
        )
        for pod in load.pods
    ]
    return round_status.RolloutLoad(projected_kv_peak_tokens=load.peak_tokens, pods=pods)


def _reported_benefit(benefit: Benefit) -> RepurposingBenefit:
    return RepurposingBenefit(
        rollout_longer_s=_rounded(benefit.rollout_longer_s),
        training_shorter_s=_rounded(benefit.training_shorter_s),
        wanted=benefit.is_wanted,
        trial=benefit.is_trial,
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
