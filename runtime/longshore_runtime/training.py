"""The training loop. It reads as the algorithm; what is hard lies in the parts that it is given.

restore                 the newest checkpoint, if there is one
evaluate                held-out prompts, with the initial weights
for each step:
    rollout             one round of the policy: exactly P0 groups of R0 responses, with rewards
    train               advantages, gradients, one optimizer step for every U groups: after the round, or while it runs
    publish             the new weights go into the running engines
    record              metrics, ledger, status
    checkpoint
drain                   deferred draws, in smaller long rounds
evaluate, checkpoint, export the model
"""

import queue
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from longshore.api.algorithm import Algorithm
from longshore.api.model import Evaluation
from longshore.api.objective import OBJECTIVES
from longshore.api.rollout import OnFinish
from longshore.api.spec import RLJobSpec
from longshore.policy.draws import DrawCursor
from longshore.policy.handover import Handover
from longshore.policy.round import ResponseId
from longshore.policy.round_policy import BatchShape, RoundPolicy
from longshore.policy.synchronous import Synchronous
from longshore_runtime.checkpoint import CheckpointStore, export_model
from longshore_runtime.clock import Clock
from longshore_runtime.data.dataset import PromptSets
from longshore_runtime.errors import TrainerLost, UserError
from longshore_runtime.rollout.batch import RoundResult, ScoredGroup
from longshore_runtime.rollout.engine_pool import EnginePool
from longshore_runtime.rollout.events import Event
from longshore_runtime.rollout.requests import request_seed
from longshore_runtime.rollout.reward_pool import RewardPool
from longshore_runtime.rollout.round_runner import Progress, RoundRunner
from longshore_runtime.run_state import HeldOutScore, RunState
from longshore_runtime.storage import JobStorage
from longshore_runtime.telemetry.recorder import Recorder
from longshore_runtime.telemetry.step_metrics import StepTimes
from longshore_runtime.trainer.group import TrainerGroup
from longshore_runtime.trainer.samples import batch_samples
from longshore_runtime.trainer.updates import StepTraining, StepUpdates, max_tokens_per_batch
from longshore_runtime.types import Completion, PromptRecord, Request

log = structlog.get_logger()


@dataclass(frozen=True)
class LoopOptions:
    """The slice of the spec that the loop needs."""

    algorithm: Algorithm
    evaluation: Evaluation
    on_finish: OnFinish
    checkpoint_every_steps: int
    is_pipelined: bool = False
    """Groups are handed to the trainers while the round still runs."""
    max_tokens_per_dispatch: int = 131_072
    trains_during_rollout: bool = True
    """Whether the trainers have their accelerators (or processors) while engines run; if not, they wait for the end."""

    @classmethod
    def of(cls, spec: RLJobSpec) -> "LoopOptions":
        """The slice of this spec."""
        return cls(
            algorithm=spec.algorithm,
            evaluation=spec.evaluation,
            on_finish=spec.rollout.on_finish,
            checkpoint_every_steps=spec.checkpoint.every_steps,
            is_pipelined=spec.rollout.is_pipelined,
            max_tokens_per_dispatch=spec.rollout.max_tokens_per_dispatch,
            trains_during_rollout=not spec.workers.has_accelerator,
        )


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
    events: "queue.SimpleQueue[Event]"
    clock: Clock


class TrainingLoop:
    """One run from the newest checkpoint to the end."""

    def __init__(self, options: LoopOptions, parts: Parts) -> None:
        self._options = options
        self._parts = parts
        self._state = RunState()
        self._updates: StepUpdates | None = None
        """Of the step that runs."""
        self.num_steps = 0
        """Steps that this loop has trained."""
        self._train_prompts = dict(enumerate(parts.prompts.train))

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
        started_s = self._parts.clock.now_s()
        self._updates = updates = self._step_updates()
        result = self._rollout(updates, draining)
        rolled_out_s = self._parts.clock.now_s()
        trained = self._train(updates)
        trained_s = self._parts.clock.now_s()
        self._publish(trained.policy_version)
        published_s = self._parts.clock.now_s()
        policy = self._parts.policy.export_state()
        self._state = self._state.after_step(result, trained.samples, policy, trained.policy_version)
        self._updates = None
        self.num_steps += 1
        times = StepTimes(
            step_s=published_s - started_s,
            gen_s=result.rollout_s,
            reward_s=rolled_out_s - started_s - result.rollout_s,
            train_s=trained_s - rolled_out_s,
            publish_s=published_s - trained_s,
        )
        self._parts.recorder.step(self._state, result, trained, times, self._parts.policy.num_deferred)
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
            self._publish(self._state.policy_version)
            return
        log.info("resuming", step=checkpoint.step)
        state = checkpoint.state()
        self._state = RunState.load(state["run"], checkpoint.kept())
        try:
            self._parts.policy.load_state(self._state.policy)
        except ValueError as error:
            raise UserError(str(error)) from error
        self._parts.trainers.load(self._parts.storage.relative(checkpoint.model))
        self._parts.rewards.load_state(state["rewards"])
        self._parts.recorder.resume(self._state, state["recorder"])
        self._publish(self._state.policy_version)

    def checkpoint(self, *, timeout_s: float | None = None) -> None:
        """Save the last finished step; raises TrainerLost when its trainer state is gone or `timeout_s` is over."""
        state = {
            "run": self._state.export(),
            "recorder": self._parts.recorder.export(),
            "rewards": self._parts.rewards.export_state(),
        }
        checkpoint = self._parts.checkpoints.publish(
            self._state.step,
            state,
            self._state.kept,
            lambda directory: self._parts.trainers.save(self._parts.storage.relative(directory), timeout_s=timeout_s),
        )
        self._parts.recorder.checkpoint(checkpoint)

    def save(self, *, timeout_s: float) -> None:
        """Save the last finished step, called when the pod must stop; raises TrainerLost if its weights are gone."""
        if self._updates is not None and self._updates.has_begun:
            raise TrainerLost("the trainers have begun the next step")
        if self._state.policy:
            self.checkpoint(timeout_s=timeout_s)

    def _rollout(self, updates: StepUpdates, draining: bool) -> RoundResult:
        recorder, state = self._parts.recorder, self._state

        def on_progress(progress: Progress) -> None:
            recorder.round_progress(state, progress)

        runner = self._runner(self._parts.policy, self._training_request, on_progress, updates.trainable)
        result = runner.run(state.kept, draining=draining)
        self._parts.rewards.rest()
        return result

    def _step_updates(self) -> StepUpdates:
        options, algorithm, version = self._options, self._options.algorithm, self._state.policy_version
        budget = max_tokens_per_batch(
            OBJECTIVES[algorithm.name],
            is_pipelined=options.is_pipelined,
            max_tokens_per_dispatch=options.max_tokens_per_dispatch,
        )
        return StepUpdates(
            self._parts.trainers,
            Handover(algorithm.groups_per_update, budget),
            lambda groups: batch_samples(groups, self._train_prompts, algorithm, version),
            self._train_prompts,
            self._parts.clock,
            begins_during_rollout=options.is_pipelined and options.trains_during_rollout,
        )

    def _train(self, updates: StepUpdates) -> StepTraining:
        self._parts.recorder.activity("Train")
        self._parts.engines.sleep()
        self._parts.trainers.wake()
        trained = updates.finish()
        assert trained.policy_version == self._state.policy_version + len(trained.updates), "an update was lost"
        return trained

    def _publish(self, policy_version: int) -> None:
        self._parts.recorder.activity("Publish")
        weights = self._parts.trainers.weights(policy_version)
        self._parts.trainers.sleep()
        self._parts.engines.wake()
        self._parts.engines.publish(weights)

    def _evaluate(self) -> None:
        """Score the held-out prompts; the seeds are those of every evaluation, so that scores compare."""
        prompts, evaluation = self._parts.prompts.held_out, self._options.evaluation
        if not prompts:
            return
        self._parts.recorder.activity("Evaluate")
        started_s = self._parts.clock.now_s()
        shape = BatchShape(len(prompts), evaluation.responses_per_prompt)
        policy = Synchronous(shape, DrawCursor(len(prompts), self._options.algorithm.seed))
        runner = self._runner(policy, self._evaluation_request, lambda progress: None, lambda group: None)
        result = runner.run({}, draining=False)
        self._parts.rewards.rest()
        score = HeldOutScore.of(result.groups, prompts)
        self._state = self._state.after_evaluation(score)
        self._parts.recorder.evaluation(self._state, self._parts.clock.now_s() - started_s)

    def _runner(
        self,
        policy: RoundPolicy,
        request_of: Callable[[ResponseId, Completion | None], Request],
        on_progress: Callable[[Progress], None],
        on_trainable: Callable[[ScoredGroup], None],
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
            on_progress,
            on_trainable,
        )

    def _training_request(self, response: ResponseId, kept: Completion | None) -> Request:
        record = self._train_prompts[response.draw.index]
        return self._request(response, record, kept, f"train/{self._state.step}", self._options.algorithm.temperature)

    def _evaluation_request(self, response: ResponseId, kept: Completion | None) -> Request:
        record = self._parts.prompts.held_out[response.draw.index]
        return self._request(response, record, kept, "held-out", self._options.evaluation.temperature)

    def _request(
        self, response: ResponseId, record: PromptRecord, kept: Completion | None, purpose: str, temperature: float
    ) -> Request:
        algorithm = self._options.algorithm
        return Request(
            request_id=str(response),
            prompt_tokens=record.prompt_tokens,
            max_tokens=algorithm.max_response_tokens,
            temperature=temperature,
            seed=request_seed(algorithm.seed, purpose, response),
            partial=kept.runs if kept else (),
        )

    def _finish(self) -> None:
        self._evaluate()
        self.checkpoint()
        newest = self._parts.checkpoints.newest()
        assert newest is not None and newest.step == self._state.step
        model = self._parts.storage.output_dir / "model"
        export_model(newest, model)
        self._parts.recorder.finished(self._parts.storage.relative(model))
