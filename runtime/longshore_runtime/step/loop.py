"""The training loop. It reads as the algorithm; the work is done by the parts that the session built.

restore                 the newest checkpoint, if there is one
evaluate                held-out prompts, with the initial weights, or what an interruption prevented
for each step:
    end if resized      if the job is to go on with other worker pods: checkpoint, and another session
    regroup             engines take the size that the planner wants for the next round
    rollout             one round of the policy: exactly P0 groups of R0 responses, with rewards
    train               advantages, gradients, one optimizer step for every U groups: after the round, or while it runs;
                        where engines and trainers disagree about log-probabilities, none, and the round runs again
    publish             the new weights go into the running engines
    record              metrics, ledger, status
    evaluate, checkpoint; the next round runs while it is written
drain                   deferred draws, in smaller long rounds
evaluate, checkpoint, export the model

Who waits for whom, in the driver's thread: it alone calls policy, engines and trainers, and it waits in these places.

    events.get()  <──  engine-N threads (responses, losses)   reward workers (scores)   elastic (pods are asleep)
                       trainer watch (a replica is lost)      job watch (assignments)   signals (the pod must stop)
    trainers      <──  ray.get: gradients, updates, weights, checkpoints
    engines       <──  ray.get: weights are confirmed, engines are asleep or awake
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import structlog

from longshore.api.reasons import NoticeReason
from longshore.api.rollout import OnFinish
from longshore.api.round_status import RoundKind
from longshore.policy.benefit_gate import BenefitGate, GatePrior
from longshore.policy.length_distribution import LengthDistribution
from longshore.record.facts import StepMarks
from longshore_runtime.checkpoints.run_state import RunState
from longshore_runtime.elastic.auto_factors import step_facts
from longshore_runtime.elastic.benefit import step_outcome
from longshore_runtime.elastic.regrouping import Regrouping
from longshore_runtime.elastic.size import AppliedSize
from longshore_runtime.errors import SizeChanged, TrainerLost, UserError
from longshore_runtime.rollout.round_runner import RoundRequests
from longshore_runtime.step.checkpointing import RunCheckpoints
from longshore_runtime.step.evaluation import Evaluator
from longshore_runtime.step.parts import LoopOptions, Parts
from longshore_runtime.step.publication import SharedGpus
from longshore_runtime.step.round_training import RoundTraining, TrainedRound
from longshore_runtime.telemetry.alarms import Alarms
from longshore_runtime.telemetry.step_done import StepDone
from longshore_runtime.trainer.recovery import Recovery

log = structlog.get_logger()


class TrainingLoop:
    """One run from the newest checkpoint to the end."""

    def __init__(self, options: LoopOptions, parts: Parts, prior: GatePrior | None = None) -> None:
        """Take the parts; `prior`: what the job's profile says of repurposing; None: it has no profile."""
        self._options = options
        self._parts = parts
        self._state = RunState()
        self.num_steps = 0
        """Number of steps that this loop has trained."""
        self._saved_s = parts.clock.now_s()
        """Time at which the last checkpoint was begun, or the loop, in seconds."""
        self._saving_generation = 0
        """World of trainers that writes, or has written, the last checkpoint."""
        self._is_save_lost = False
        """Whether it has not come to be, because this world was lost."""
        self._lengths: defaultdict[RoundKind, LengthDistribution] = defaultdict(LengthDistribution)
        """Lengths of finished responses, by kind of round."""
        is_gated = options.repurposing is not None and options.repurposing.is_gated
        self._gate = BenefitGate(prior) if is_gated else None
        self._alarms = Alarms(options.alarm_limits, parts.recorder)
        self._regrouping = Regrouping(parts.assignments, parts.engines, parts.recorder, options.attempt)
        self._size = AppliedSize(parts.assignments, parts.recorder, options.num_workers)
        self._checkpoints = RunCheckpoints(
            parts, self._alarms, self._lengths, self._gate, options.algorithm.max_response_tokens
        )
        self._recovery = Recovery(
            parts.trainers,
            self._checkpoints.load_trainers,
            parts.engines.sleep if options.is_colocated else None,
            settle=self._finish_or_lose,
            notify=parts.recorder.notice,
        )
        self._shared_gpus = SharedGpus(parts, self._recovery, self._regrouping, is_colocated=options.is_colocated)
        self._training = RoundTraining(
            options, parts, self._shared_gpus, self._recovery, self._regrouping, self._lengths, self._gate
        )
        self._evaluator = Evaluator(options, parts, self._recovery, self._alarms)

    def run(self) -> None:
        """Train to the end.

        Raises:
            Interrupted, SizeChanged, TrainerLost: a new loop continues from a checkpoint.
        """
        self.restore()
        if self._evaluator.is_missing(self._state):
            self._state = self._evaluator.run(self._state)
            self.checkpoint()
        while self._state.step < self._options.algorithm.steps:
            self._end_if_resized()
            self.step(draining=False)
        while self._options.on_finish is OnFinish.DRAIN and self._parts.policy.num_deferred:
            self._end_if_resized()
            self.step(draining=True)
        if self._state.evaluated_step != self._state.step:  # An attempt before this one may have come as far.
            self._state = self._evaluator.run(self._state)
        self.checkpoint()
        final_model = self._checkpoints.export_model(self._state.step)
        self._parts.recorder.finished(final_model)

    def restore(self) -> None:
        """Continue from the newest checkpoint, or begin; in both cases, engines then serve the right weights."""
        restored = self._checkpoints.restore()
        if restored is None:
            restored = self._state.with_policy(self._parts.policy.export_state())
            restored = restored.with_rewards(self._parts.rewards.export_state())
            self._parts.recorder.begin()
            self._parts.records.rewind(0)
        self._state = restored
        self._shared_gpus.to_rollout(self._state.policy_version)

    def _end_if_resized(self) -> None:
        """Save and raise SizeChanged if the job is to continue with another number of worker pods."""
        num_workers = self._size.change()
        if num_workers is not None:
            self.checkpoint()
            raise SizeChanged(num_workers)

    def step(self, *, draining: bool) -> None:
        """Run one round and its updates; `draining`: on deferred draws only."""
        policy, clock = self._parts.policy, self._parts.clock
        begun_s = clock.now_s()
        self._choose_factors()
        self._shared_gpus.regroup(policy.next_kind(draining=draining), self._state.step + 1, self._state.policy_version)
        regrouped_s = clock.now_s()
        done = self._training.run(self._state, self._training_requests(), draining=draining)
        marks = StepMarks(
            begun_s=begun_s,
            regrouped_s=regrouped_s,
            started_s=done.started_s,
            sampled_s=done.result.batch_complete_s,
            scored_s=done.rolled_out_s,
            trained_s=done.trained_s,
            published_s=clock.now_s(),
        )
        self._state = self._state.after_step(
            done.result, done.trained.samples, policy.export_state(), done.trained.policy_version
        ).with_rewards(self._parts.rewards.export_state())
        self.num_steps += 1
        self._lengths[done.result.end.kind].extend(done.result.finished_tokens)
        self._parts.checkpoints.require_own()  # Another job that has begun here has cut the files back to its steps.
        report_step(self._parts, self._regrouping, self._gate, self._alarms, self._state, done, marks)
        self._parts.stop.require_none()
        self._finish_or_lose()
        if self._evaluator.is_due(self._state.step):
            self._state = self._evaluator.run(self._state)
        unsaved_s, unsaved_tokens = clock.now_s() - self._saved_s, self._recovery.num_kept_tokens
        if self._is_save_lost or self._options.is_checkpoint_due(self._state.step, unsaved_s, unsaved_tokens):
            self._guarded_save(self._begin_save)

    def checkpoint(self) -> None:
        """Save the last finished step, and wait for it; raises TrainerLost when its trainer state is lost."""
        self._finish_or_lose()
        self._guarded_save(self._save)

    def _guarded_save(self, save: Callable[[], None]) -> None:
        try:
            save()
        except TrainerLost as loss:
            self._recovery.lost(str(loss), self._parts.trainers.generation)
            self._recovery.guarded(save)
            self._shared_gpus.to_rollout(self._state.policy_version)

    def _finish_or_lose(self, timeout_s: float = math.inf) -> None:
        """Wait for a checkpoint that is being written, and note it if its trainers are gone."""
        try:
            if self._checkpoints.finish(timeout_s):
                self._recovery.saved()
        except TrainerLost as loss:
            self._is_save_lost = True
            self._recovery.lost(str(loss), self._saving_generation)

    def finish_save_if_possible(self, *, timeout_s: float) -> None:
        """Wait for a checkpoint that is being written when the session ends: its trainers end next."""
        try:
            self._finish_or_lose(timeout_s)
        except (UserError, OSError, RuntimeError) as error:
            log.warning("no checkpoint at the end", reason=str(error))

    def save_if_possible(self, *, timeout_s: float) -> None:
        """Save the last finished step when the pod must stop; the trainers may be stopping as well."""
        try:
            self._save_at_end(timeout_s)
        except (TrainerLost, UserError, OSError, RuntimeError) as error:  # Errors of GPUs are RuntimeErrors.
            log.warning("no checkpoint at the end", reason=str(error))

    def _save_at_end(self, timeout_s: float) -> None:
        """Raise TrainerLost if there is nothing to save, or not by this job."""
        deadline_s = time.monotonic() + timeout_s
        self._finish_or_lose(timeout_s)
        if self._checkpoints.is_writing:
            raise TrainerLost("the checkpoint before is still being written")
        if self._training.may_have_updated:
            raise TrainerLost("the trainers have begun the next update")
        if self._recovery.is_lost:
            raise TrainerLost("a trainer replica is gone")
        if self._state.policy:
            self._save(timeout_s=max(0.0, deadline_s - time.monotonic()))

    def _save(self, timeout_s: float = math.inf) -> None:
        self._begin_save(timeout_s)
        self._checkpoints.finish(timeout_s)
        self._recovery.saved()

    def _begin_save(self, timeout_s: float = math.inf) -> None:
        self._checkpoints.begin(self._state, timeout_s)
        self._is_save_lost, self._saved_s = False, self._parts.clock.now_s()
        self._saving_generation = self._parts.trainers.generation
        self._recovery.saving()

    def _choose_factors(self) -> None:
        """Take the factors that strategy Auto has found in its spare time, if any."""
        auto, recorder = self._parts.auto, self._parts.recorder
        if auto is None:
            return
        if (change := auto.before_round(self._state.step + 1)) is not None:
            recorder.notice(NoticeReason.FACTORS_CHANGED, str(change))
            self._state = self._state.with_policy(self._parts.policy.export_state())
        recorder.factors(auto.chosen)

    def _training_requests(self) -> RoundRequests:
        """Return the requests of the next round; a benchmark overrides this to set lengths.

        A draw that was put off asks with the seeds that it had, so that its long responses come back, as far as the
        policy is still the same; with others, rounds would go on putting off what turns out long (selection-bias.md).
        """
        algorithm = self._options.algorithm
        return RoundRequests(self._parts.prompts.train, algorithm, "train", algorithm.temperature)


def report_step(
    parts: Parts,
    regrouping: Regrouping,
    gate: BenefitGate | None,
    alarms: Alarms,
    state: RunState,
    done: TrainedRound,
    marks: StepMarks,
) -> None:
    """Report the step that led to `state` to regrouping, benefit gate, tuner, recorder, records and alarms."""
    result, trained = done.result, done.trained
    queue_length, num_replicas = parts.policy.num_deferred, parts.trainers.num_replicas
    repurposed = None
    if (repurposing := done.step.repurposing) is not None:
        repurposed = repurposing.times
        regrouping.answered(repurposing.answered_epoch, repurposing.answered_overlay)
    if gate is not None and repurposing is not None:
        step_s = marks.published_s - marks.begun_s
        outcome = step_outcome(result.end.kind, trained, step_s, num_replicas, repurposed)
        saved_s = gate.ended(outcome)
        repurposed = None if repurposed is None else replace(repurposed, saved_s=saved_s)
    if parts.auto is not None and done.pace is not None:
        parts.auto.step_ended(step_facts(result, trained, marks, done.pace, parts.engines, num_replicas, queue_length))
    step = StepDone(state.step, marks, result, trained, queue_length, repurposed, done.shorter_again)
    parts.recorder.step(state, step)
    parts.records.keep(step)
    alarms.step(state.step, result, trained)
