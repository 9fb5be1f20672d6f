"""The training loop. It reads as the algorithm; what is hard lies in the parts that it is given.

restore                 the newest checkpoint, if there is one
evaluate                held-out prompts, with the initial weights
for each step:
    rollout             one round of the policy: exactly P0 groups of R0 responses, with rewards
    train               group-local advantages, gradient over the whole batch, one optimizer step
    publish             the new weights go into the running engines
    record              metrics, ledger, status
    checkpoint
drain                   deferred draws, in smaller long rounds
evaluate, checkpoint, export the model
"""

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from longshore.api.algorithm import Algorithm
from longshore.api.model import Evaluation
from longshore.api.rollout import OnFinish
from longshore.api.training import OnRewardError
from longshore.policy.draws import DrawCursor
from longshore.policy.round import ResponseId
from longshore.policy.round_policy import BatchShape, RoundPolicy
from longshore.policy.synchronous import Synchronous
from longshore_runtime.checkpoint import CheckpointStore, export_model
from longshore_runtime.clock import Clock
from longshore_runtime.data.dataset import PromptSets
from longshore_runtime.errors import UserError
from longshore_runtime.rollout.batch import RoundResult
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
from longshore_runtime.trainer.samples import samples_of
from longshore_runtime.types import Completion, PromptRecord, Request, Sample, TrainResult

log = structlog.get_logger()


@dataclass(frozen=True)
class LoopOptions:
    """The slice of the spec that the loop needs."""

    algorithm: Algorithm
    evaluation: Evaluation
    on_finish: OnFinish
    on_reward_error: OnRewardError
    checkpoint_every_steps: int


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
        result = self._rollout(draining)
        rolled_out_s = self._parts.clock.now_s()
        samples = self._samples(result)
        trained = self._train(samples)
        trained_s = self._parts.clock.now_s()
        self._publish(trained.update.policy_version)
        published_s = self._parts.clock.now_s()
        self._state = self._state.after_step(result, samples, self._parts.policy.export_state())
        self.num_steps += 1
        times = StepTimes(
            step_s=published_s - started_s,
            gen_s=result.rollout_s,
            reward_s=rolled_out_s - started_s - result.rollout_s,
            train_s=trained_s - rolled_out_s,
            publish_s=published_s - trained_s,
        )
        self._parts.recorder.step(self._state, result, samples, trained, times, self._parts.policy.num_deferred)
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
            self._publish(self._state.step)
            return
        log.info("resuming", step=checkpoint.step)
        state = checkpoint.state()
        self._state = RunState.load(state["run"], checkpoint.kept())
        try:
            self._parts.policy.load_state(self._state.policy)
        except ValueError as error:
            raise UserError(str(error)) from error
        self._parts.trainers.load(self._parts.storage.relative(checkpoint.model))
        self._parts.recorder.resume(self._state, state["recorder"])
        self._publish(self._state.step)

    def checkpoint(self, *, timeout_s: float | None = None) -> None:
        """Save the last finished step; raises TrainerLost when its trainer state is gone or `timeout_s` is over."""
        state = {"run": self._state.export(), "recorder": self._parts.recorder.export()}
        checkpoint = self._parts.checkpoints.publish(
            self._state.step,
            state,
            self._state.kept,
            lambda directory: self._parts.trainers.save(self._parts.storage.relative(directory), timeout_s=timeout_s),
        )
        self._parts.recorder.checkpoint(checkpoint)

    def save(self, *, timeout_s: float) -> None:
        """Save the last finished step, called when the pod must stop; raises TrainerLost if its weights are gone."""
        if self._state.policy:
            self.checkpoint(timeout_s=timeout_s)

    def _rollout(self, draining: bool) -> RoundResult:
        recorder, state = self._parts.recorder, self._state

        def on_progress(progress: Progress) -> None:
            recorder.round_progress(state, progress)

        runner = self._runner(self._parts.policy, self._training_request, on_progress)
        return runner.run(state.kept, draining=draining)

    def _samples(self, result: RoundResult) -> list[Sample]:
        epsilon = self._options.algorithm.advantage_epsilon
        return [
            sample
            for group in result.groups
            for sample in samples_of(group, self._train_prompts[group.draw.index], epsilon)
        ]

    def _train(self, samples: Sequence[Sample]) -> TrainResult:
        self._parts.recorder.activity("Train")
        self._parts.engines.sleep()
        self._parts.trainers.wake()
        trained = self._parts.trainers.train(samples)
        assert trained.update.policy_version == self._state.step + 1, "a policy version is a number of steps"
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
        result = self._runner(policy, self._evaluation_request, lambda progress: None).run({}, draining=False)
        score = HeldOutScore.of(result.groups, prompts)
        self._state = self._state.after_evaluation(score)
        self._parts.recorder.evaluation(self._state, self._parts.clock.now_s() - started_s)

    def _runner(
        self,
        policy: RoundPolicy,
        request_of: Callable[[ResponseId, Completion | None], Request],
        on_progress: Callable[[Progress], None],
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
            self._options.on_reward_error,
            on_progress,
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
