"""The training loop. It reads as the algorithm; what is hard lies in the parts that it is given.

restore                 the newest checkpoint, if there is one
evaluate                held-out prompts, with the initial weights
for each step:
    rollout             one round of the policy: exactly P0 groups of R0 responses, with rewards
    train               advantages, gradients, one optimizer step for every U groups: after the round, or while it runs;
                        where engines and trainers disagree about log-probabilities, none, and the round runs again
    publish             the new weights go into the running engines
    record              metrics, ledger, status
    checkpoint
drain                   deferred draws, in smaller long rounds
evaluate, checkpoint, export the model
"""

import queue
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

import structlog

from longshore.api.rollout import OnFinish
from longshore.api.runtime_status import RoundKind, RuntimeActivity
from longshore.policy.benefit_gate import BenefitGate
from longshore.policy.draws import DrawCursor
from longshore.policy.length_distribution import LengthDistribution
from longshore.policy.rollout_pace import RolloutPace
from longshore.policy.round import ResponseId
from longshore.policy.round_policy import BatchShape, RoundPolicy
from longshore.policy.scale_down import Milestones
from longshore.policy.synchronous import Synchronous
from longshore.record.facts import StepMarks
from longshore_runtime.checkpoint import CheckpointStore, export_model
from longshore_runtime.clock import Clock
from longshore_runtime.data.dataset import PromptSets
from longshore_runtime.elastic.baseline import AppliedBaseline
from longshore_runtime.elastic.benefit import step_outcome
from longshore_runtime.elastic.job_watch import Assignments
from longshore_runtime.elastic.repurposing import Repurposing
from longshore_runtime.errors import TrainerLost, UserError
from longshore_runtime.loop_options import LoopOptions
from longshore_runtime.mismatch_guard import MismatchGuard
from longshore_runtime.rollout.batch import RoundResult
from longshore_runtime.rollout.engine_pool import EnginePool
from longshore_runtime.rollout.events import Event
from longshore_runtime.rollout.reward_pool import RewardPool
from longshore_runtime.rollout.round_runner import NOTHING_KEPT, RoundObserver, RoundRunner
from longshore_runtime.round_requests import RequestOf, RoundRequests
from longshore_runtime.run_state import HeldOutScore, RunState
from longshore_runtime.running_step import Evaluating, RunningStep
from longshore_runtime.step_work import StepWorks, require_equal_gradients
from longshore_runtime.storage import JobStorage
from longshore_runtime.telemetry.alarms import Alarms
from longshore_runtime.telemetry.recorder import Recorder
from longshore_runtime.telemetry.step_done import StepDone
from longshore_runtime.telemetry.step_metrics import StepTimes
from longshore_runtime.telemetry.step_records import NoRecords, StepSink
from longshore_runtime.trainer.group import TrainerGroup
from longshore_runtime.trainer.recovery import Recovery
from longshore_runtime.trainer.updates import StepTraining
from longshore_runtime.types import Completion

log = structlog.get_logger()


@dataclass(frozen=True)
class Parts:
    """What the loop works with."""

    policy: RoundPolicy
    prompts: PromptSets
    engines: EnginePool
    trainers: TrainerGroup
    rewards: RewardPool
    checkpoints: CheckpointStore
    storage: JobStorage
    recorder: Recorder
    assignments: Assignments
    elastic: Executor
    """Does what takes time while a round runs."""
    events: "queue.SimpleQueue[Event]"
    clock: Clock
    records: StepSink = field(default_factory=NoRecords)


@dataclass(frozen=True)
class _Attempt:
    """A round that was trained on."""

    step: RunningStep
    result: RoundResult
    trained: StepTraining
    started_s: float
    rolled_out_s: float
    trained_s: float


class TrainingLoop:
    """One run from the newest checkpoint to the end."""

    def __init__(self, options: LoopOptions, parts: Parts) -> None:
        self._options = options
        self._parts = parts
        self._state = RunState()
        self._step: RunningStep | None = None
        """The step that runs."""
        self.num_steps = 0
        """Steps that this loop has trained."""
        self._train_prompts = dict(enumerate(parts.prompts.train))
        self._recovery = Recovery(parts.trainers, self._load_newest, self._to_training)
        self._baseline = AppliedBaseline(parts.assignments, parts.engines, parts.recorder, options.attempt)
        self._lengths: defaultdict[RoundKind, LengthDistribution] = defaultdict(LengthDistribution)
        """Of responses that ended by themselves, by kind of round."""
        self._gate = BenefitGate() if options.repurposing is not None and options.repurposing.is_gated else None
        self._works = StepWorks(options, parts.trainers, self._train_prompts, parts.events, parts.clock)
        self._guard = MismatchGuard(options.max_mismatch, parts.recorder.notice)
        self._alarms = Alarms(options.alarm_limits, parts.recorder)

    def run(self) -> None:
        """Train to the end; raises Interrupted or TrainerLost, after which a new loop continues from a checkpoint."""
        self.restore()
        if self._state.step == 0 and self._state.held_out_before is None:
            self._evaluate()
            self.checkpoint()
        while self._state.step < self._options.algorithm.steps:
            self.step(draining=False)
        while self._options.on_finish is OnFinish.DRAIN and self._parts.policy.num_deferred:
            self.step(draining=True)
        self._finish()

    def step(self, *, draining: bool) -> None:
        """One round and one optimizer step; `draining`: on deferred draws only."""
        parts, clock = self._parts, self._parts.clock
        begun_s = clock.now_s()
        self._apply_baseline(parts.policy.next_kind(draining=draining))
        regrouped_s = clock.now_s()
        done = self._guard.checked(self._state.step + 1, lambda: self._attempt(draining), self._begin_again)
        step, result, trained = done.step, done.result, done.trained
        self._publish(trained.policy_version)
        published_s = clock.now_s()
        self._state = self._state.after_step(
            result, trained.samples, parts.policy.export_state(), trained.policy_version
        )
        self._step = None
        self.num_steps += 1
        self._lengths[result.end.kind].extend(result.finished_tokens)
        marks = StepMarks(
            begun_s=begun_s,
            regrouped_s=regrouped_s,
            started_s=done.started_s,
            sampled_s=result.batch_complete_s,
            scored_s=done.rolled_out_s,
            trained_s=done.trained_s,
            published_s=published_s,
        )
        repurposed = None
        if step.repurposing is not None:
            repurposed = step.repurposing.times
            self._baseline.answered(step.repurposing.answered_epoch)
        queue_length, times = parts.policy.num_deferred, StepTimes.of(marks, result.rollout_s)
        if self._gate is not None:
            outcome = step_outcome(result.end.kind, trained, times.step_s, parts.trainers.num_replicas, repurposed)
            saved_s = self._gate.ended(outcome)
            repurposed = None if repurposed is None else replace(repurposed, saved_s=saved_s)
        parts.recorder.step(self._state, result, trained, times, queue_length, repurposed)
        parts.records.keep(StepDone(self._state.step, marks, result, trained, queue_length, repurposed))
        self._alarms.step(self._state.step, result, trained)
        every = self._options.evaluation.every_steps
        if every and self._state.step % every == 0 and self._state.step < self._options.algorithm.steps:
            self._evaluate()
        if self._state.step % self._options.checkpoint_every_steps == 0:
            self.checkpoint()

    def restore(self) -> None:
        """Continue from the newest checkpoint, or begin; either way the engines serve the right weights afterwards."""
        checkpoint = self._parts.checkpoints.newest()
        if checkpoint is None:
            self._state = self._state.with_policy(self._parts.policy.export_state())
            self._parts.recorder.begin()
            self._parts.records.rewind(0)
            self._publish(self._state.policy_version)
            return
        log.info("resuming", step=checkpoint.step)
        state = checkpoint.state()
        self._state = RunState.load(state["run"], checkpoint.kept())
        try:
            self._parts.policy.load_state(self._state.policy)
        except ValueError as error:
            raise UserError(str(error)) from error
        self._load_newest()
        for kind, exported in state.get("lengths", {}).items():
            self._lengths[RoundKind(kind)].load_state(exported)
        if self._gate is not None and "benefit" in state:  # Older versions had none.
            self._gate.load_state(state["benefit"])
        self._parts.rewards.load_state(state["rewards"])
        self._parts.recorder.resume(self._state, state["recorder"])
        self._parts.records.rewind(self._state.step)
        if "alarms" in state:  # Older versions had none.
            self._alarms.load(state["alarms"])
        self._publish(self._state.policy_version)

    def checkpoint(self) -> None:
        """Save the last finished step; raises TrainerLost when its trainer state is gone for good."""
        try:
            self._save()
        except TrainerLost as loss:
            self._recovery.lost(str(loss), self._parts.trainers.generation)
            self._recovery.guarded(self._save)
            self._publish(self._state.policy_version)

    def save(self, *, timeout_s: float) -> None:
        """Save the last finished step, called when the pod must stop; raises TrainerLost if its weights are gone."""
        if self._step is not None and self._step.work.may_have_updated:
            raise TrainerLost("the trainers have begun the next update")
        if self._recovery.is_lost:
            raise TrainerLost("a trainer replica is gone")
        if self._state.policy:
            self._save(timeout_s=timeout_s)

    def _save(self, *, timeout_s: float | None = None) -> None:
        state = {
            "run": self._state.export(),
            "recorder": self._parts.recorder.export(),
            "rewards": self._parts.rewards.export_state(),
            "alarms": self._alarms.export(),
            **({"benefit": self._gate.export_state()} if self._gate is not None else {}),
            "lengths": {kind.value: lengths.export_state() for kind, lengths in self._lengths.items()},
        }
        checkpoint = self._parts.checkpoints.publish(
            self._state.step,
            state,
            self._state.kept,
            lambda directory: self._parts.trainers.save(self._parts.storage.relative(directory), timeout_s=timeout_s),
        )
        self._recovery.checkpointed()
        self._parts.recorder.checkpoint(checkpoint)

    def _load_newest(self) -> None:
        checkpoint = self._parts.checkpoints.newest()
        if checkpoint is not None:
            self._parts.trainers.load(self._parts.storage.relative(checkpoint.model))

    def _attempt(self, draining: bool) -> _Attempt:
        """Sample and train; raises LogProbMismatch where engines and trainers disagree, by which nothing is trained."""
        clock = self._parts.clock
        started_s = clock.now_s()
        self._step = step = self._begin_step()
        result = self._rollout(step, draining)
        rolled_out_s = clock.now_s()
        trained = self._train(step)
        return _Attempt(step, result, trained, started_s, rolled_out_s, clock.now_s())

    def _begin_again(self) -> None:
        """A round was refused: engines get the weights that they should have, and its draws are to be sampled again."""
        if self._step is not None and self._step.repurposing is not None:
            self._baseline.answered(self._step.repurposing.answered_epoch)
        self._step = None
        self._recovery.guarded(self._parts.trainers.discard)
        self._publish(self._state.policy_version)
        self._parts.policy.load_state(self._state.policy)

    def _rollout(self, step: RunningStep, draining: bool) -> RoundResult:
        repurposing = step.repurposing
        milestones, pace = (repurposing.milestones, repurposing.pace) if repurposing is not None else (None, None)
        runner = self._runner(self._parts.policy, self._training_requests(), step, self._state.kept, milestones, pace)
        if step.repurposing is not None:
            step.repurposing.begin(runner)
        result = runner.run(draining=draining)
        self._parts.rewards.rest()
        return result

    def _training_requests(self) -> RequestOf:
        """What the next round asks of the engines; a benchmark gives responses other lengths here."""
        algorithm = self._options.algorithm
        return RoundRequests(self._train_prompts, algorithm, f"train/{self._state.step}", algorithm.temperature).of

    def _begin_step(self) -> RunningStep:
        options, parts, state = self._options, self._parts, self._state
        number = state.step + 1
        work = self._works.begin(number, state.policy_version)
        repurposing = None
        if options.repurposing is not None:
            repurposing = Repurposing(
                options.repurposing,
                number,
                parts.engines,
                parts.trainers,
                self._lengths,
                parts.recorder,
                parts.events,
                parts.elastic,
                parts.clock,
                work.replicas_awake,
                answered_epoch=self._baseline.epoch,
                gate=self._gate,
            )
        return RunningStep(
            work, repurposing, self._recovery, lambda progress: parts.recorder.round_progress(state, progress)
        )

    def _train(self, step: RunningStep) -> StepTraining:
        self._parts.recorder.activity(RuntimeActivity.TRAIN)
        if step.repurposing is not None:
            step.repurposing.finish()
        self._to_training()

        def work() -> StepTraining:
            self._parts.trainers.wake()
            return step.work.finish()

        trained = self._recovery.guarded(work, step.work.again)
        self._recovery.trained(trained)
        assert trained.policy_version == self._state.policy_version + len(trained.updates), "an update was lost"
        require_equal_gradients(trained, self._state.step + 1, self._options.verify_tolerance)
        return trained

    def _to_training(self) -> None:
        """Engines leave the GPUs that they share with trainers."""
        if self._options.is_colocated:
            self._parts.engines.sleep()

    def _apply_baseline(self, kind: RoundKind) -> None:
        """Before a round of this kind the engines take the size that they should have."""
        try:
            self._baseline.apply(kind, self._state.step + 1)
        except TrainerLost as loss:  # The engines have that size, and no weights.
            self._recovery.lost(str(loss), self._parts.trainers.generation)
            self._publish(self._state.policy_version)
            self._baseline.apply(kind, self._state.step + 1)

    def _publish(self, policy_version: int) -> None:
        """New weights for all engines, which all sample again."""
        self._parts.recorder.activity(RuntimeActivity.PUBLISH)
        self._recovery.guarded(lambda: self._to_rollout(policy_version))

    def _to_rollout(self, policy_version: int) -> None:
        """Trainers leave the GPUs that they share with engines, and write their weights to them."""
        weights = self._parts.trainers.weights(policy_version)
        if self._options.is_colocated:
            self._parts.trainers.sleep()
            self._parts.engines.wake()
        self._parts.engines.publish(weights)

    def _evaluate(self) -> None:
        """Score the held-out prompts; the seeds are those of every evaluation, so that scores compare."""
        prompts, evaluation = self._parts.prompts.held_out, self._options.evaluation
        if not prompts:
            return
        self._parts.recorder.activity(RuntimeActivity.EVALUATE)
        started_s = self._parts.clock.now_s()
        shape = BatchShape(len(prompts), evaluation.responses_per_prompt)
        policy = Synchronous(shape, DrawCursor(len(prompts), self._options.algorithm.seed))
        records = dict(enumerate(prompts))
        requests = RoundRequests(records, self._options.algorithm, "held-out", evaluation.temperature)
        result = self._runner(policy, requests.of, Evaluating(self._recovery)).run(draining=False)
        self._parts.rewards.rest()
        score = HeldOutScore.of(result.groups, prompts)
        self._state = self._state.after_evaluation(score)
        self._parts.recorder.evaluation(self._state, self._parts.clock.now_s() - started_s)
        self._alarms.evaluated(self._state)

    def _runner(
        self,
        policy: RoundPolicy,
        request_of: RequestOf,
        observer: RoundObserver,
        kept: Mapping[ResponseId, Completion] = NOTHING_KEPT,
        milestones: Milestones | None = None,
        pace: RolloutPace | None = None,
    ) -> RoundRunner:
        parts = self._parts
        held_out = policy is not parts.policy
        parts.rewards.use(parts.prompts.held_out if held_out else parts.prompts.train)
        return RoundRunner(
            policy,
            parts.engines,
            parts.rewards,
            parts.events,
            request_of,
            parts.clock,
            observer,
            kept,
            milestones,
            pace,
        )

    def _finish(self) -> None:
        self._evaluate()
        self.checkpoint()
        newest = self._parts.checkpoints.newest()
        assert newest is not None and newest.step == self._state.step
        model = self._parts.storage.output_dir / "model"
        export_model(newest, model)
        self._parts.recorder.finished(self._parts.storage.relative(model))
