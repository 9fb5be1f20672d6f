"""A round that is trained on. It is sampled once more if engines and trainers disagree about log-probabilities."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from longshore.api.round_status import RoundKind
from longshore.api.runtime_status import ProgressUnit, RuntimeActivity
from longshore.policy.benefit_gate import BenefitGate
from longshore.policy.length_distribution import LengthDistribution
from longshore.policy.rollout_pace import RolloutPace
from longshore_runtime.checkpoints.run_state import RunState
from longshore_runtime.elastic.regrouping import Regrouping
from longshore_runtime.elastic.repurposing import Repurposing
from longshore_runtime.errors import TrainerLost
from longshore_runtime.process.repeated import PROGRESS_EVERY_S, repeated
from longshore_runtime.rollout.batch import RoundResult
from longshore_runtime.rollout.round_runner import RoundRequests
from longshore_runtime.step.mismatch import MismatchGuard, require_equal_gradients
from longshore_runtime.step.parts import LoopOptions, Parts
from longshore_runtime.step.publication import SharedGpus
from longshore_runtime.step.rollout import RunningStep, run_round
from longshore_runtime.step.step_work import step_work
from longshore_runtime.step.taught_groups import TaughtGroups
from longshore_runtime.trainer.recovery import Recovery
from longshore_runtime.trainer.streaming import StreamedUpdate
from longshore_runtime.trainer.updates import StepTraining, StepUpdates, StepWork, unfinished_samples


@dataclass(frozen=True)
class TrainedRound:
    """A round that was trained on."""

    step: RunningStep
    result: RoundResult
    trained: StepTraining
    started_s: float
    rolled_out_s: float
    trained_s: float
    pace: RolloutPace | None
    """Pace of the engines, where somebody learns from it."""
    shorter_again: float | None
    """Share of responses that are shorter than they were when an earlier round cut them off."""


class RoundTraining:
    """Samples one round after the other, trains on each, and publishes the new weights."""

    def __init__(
        self,
        options: LoopOptions,
        parts: Parts,
        shared_gpus: SharedGpus,
        recovery: Recovery,
        regrouping: Regrouping,
        lengths: Mapping[RoundKind, LengthDistribution],
        gate: BenefitGate | None,
    ) -> None:
        """Take the parts; `lengths` and `gate`: what the run has learned about its rounds."""
        self._options = options
        self._parts = parts
        self._shared_gpus = shared_gpus
        self._recovery = recovery
        self._regrouping = regrouping
        self._lengths = lengths
        self._gate = gate
        self._guard = MismatchGuard(options.max_mismatch, parts.recorder.notice)
        self._step: RunningStep | None = None
        """Step that runs now; None: between two."""

    @property
    def may_have_updated(self) -> bool:
        """Whether the trainers may have begun an update of the current step."""
        return self._step is not None and self._step.work.may_have_updated

    def run(self, state: RunState, requests: RoundRequests, *, draining: bool) -> TrainedRound:
        """Sample, train and publish the step after `state`; `draining`: on deferred draws only.

        Raises:
            UserError, Interrupted, TrainerLost: as `RoundRunner.run`.
        """
        done = self._guard.checked(
            state.step + 1, lambda: self._attempt(state, requests, draining), lambda: self._prepare_retry(state)
        )
        if not self._parts.stop.is_asked:  # A checkpoint comes next, in the time that is left.
            self._shared_gpus.to_rollout(done.trained.policy_version)
        self._step = None
        return done

    def _attempt(self, state: RunState, requests: RoundRequests, draining: bool) -> TrainedRound:
        """Sample and train; raises LogProbMismatch, before any training, if engines and trainers disagree."""
        parts, clock = self._parts, self._parts.clock
        started_s = clock.now_s()
        self._step = step = self._begin(state, draining=draining)
        pace = step.repurposing.pace if step.repurposing is not None else None
        if pace is None and parts.auto is not None:
            pace = RolloutPace()
        result = run_round(
            parts,
            parts.policy,
            requests,
            step,
            draining=draining,
            kept=state.kept,
            repurposing=step.repurposing,
            pace=pace,
            train_on=(step.taught or step.work).train_on,
        )
        rolled_out_s = clock.now_s()
        algorithm = self._options.algorithm
        if algorithm.objective.trains_unfinished:
            assert isinstance(step.work, StepUpdates), "advantages of values are known after the round"
            records, version = parts.prompts.train, state.policy_version
            step.work.train_on_unfinished(unfinished_samples(result.kept, records, algorithm, version))
        trained = self._train(step, state)
        return TrainedRound(
            step,
            result,
            trained,
            started_s,
            rolled_out_s,
            trained_s=clock.now_s(),
            pace=pace,
            shorter_again=state.shorter_again(result),
        )

    def _begin(self, state: RunState, *, draining: bool) -> RunningStep:
        parts, number = self._parts, state.step + 1
        work = step_work(
            self._options,
            parts.trainers,
            parts.prompts.train,
            parts.events,
            parts.clock,
            step=number,
            policy_version=state.policy_version,
            handover=self._options.handover if parts.auto is None else parts.auto.handover,
            num_updates=parts.policy.next_num_updates(draining=draining),
        )
        taught = None
        if parts.teacher is not None:
            taught = TaughtGroups(parts.teacher, parts.prompts.train, parts.events, work.train_on)
        return RunningStep(
            work,
            self._repurposing(number, work),
            self._recovery,
            lambda progress: parts.recorder.round_progress(state, progress),
            taught,
        )

    def _repurposing(self, step: int, work: StepWork) -> Repurposing | None:
        """Return what repurposes pods while the round of a step runs; None: its gradients are not streamed there."""
        options, parts = self._options.repurposing, self._parts
        if options is None or not isinstance(work, StreamedUpdate):
            return None
        return Repurposing(
            options,
            step,
            parts.engines,
            parts.trainers,
            self._lengths,
            parts.recorder,
            parts.events,
            parts.elastic,
            parts.clock,
            work.replicas_awake,
            answered_epoch=self._regrouping.epoch,
            gate=self._gate,
        )

    def _train(self, step: RunningStep, state: RunState) -> StepTraining:
        self._parts.recorder.activity(RuntimeActivity.TRAIN)
        if step.repurposing is not None:
            step.repurposing.finish()
        self._shared_gpus.to_training()

        def work() -> StepTraining:
            self._parts.trainers.wake()
            return step.work.finish()

        def report() -> None:  # Called from another thread while the trainers work.
            with contextlib.suppress(TrainerLost):  # The driver's thread, which waits for them, gets this error, too.
                self._parts.recorder.progress(ProgressUnit.RESPONSES, *step.work.progress())

        if step.taught is not None:  # Before progress is reported, which asks for the groups from another thread.
            self._recovery.guarded(partial(self._finish_taught, step.taught), step.work.restart)
        with repeated(report, PROGRESS_EVERY_S):
            trained = self._recovery.guarded(work, step.work.restart)
        self._recovery.trained(trained)
        assert trained.policy_version == state.policy_version + len(trained.updates), "an update was lost"
        require_equal_gradients(trained, state.step + 1, self._options.verify_tolerance)
        return trained

    def _finish_taught(self, taught: TaughtGroups) -> None:
        self._parts.trainers.wake()
        taught.finish(self._parts.stop.require_time_to_update)

    def _prepare_retry(self, state: RunState) -> None:
        """Prepare to sample a refused round again: with the right weights, round policy and time limits."""
        if self._step is not None and (repurposing := self._step.repurposing) is not None:
            self._regrouping.answered(repurposing.answered_epoch, repurposing.answered_overlay)
        self._step = None
        self._recovery.guarded(self._parts.trainers.discard)
        self._shared_gpus.to_rollout(state.policy_version)
        self._parts.policy.load_state(state.policy)
        self._parts.rewards.load_state(state.rewards)
