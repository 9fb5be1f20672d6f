"""Scores the held-out prompts."""

from longshore.api.runtime_status import RuntimeActivity
from longshore.policy.draws import DrawCursor
from longshore.policy.round_policy import BatchShape
from longshore.policy.synchronous import Synchronous
from longshore_runtime.checkpoints.run_state import HeldOutScore, RunState
from longshore_runtime.rollout.round_runner import RoundRequests
from longshore_runtime.step.parts import LoopOptions, Parts
from longshore_runtime.step.rollout import Evaluating, run_round
from longshore_runtime.telemetry.alarms import Alarms
from longshore_runtime.telemetry.step_done import EvaluationDone
from longshore_runtime.trainer.recovery import Recovery


class Evaluator:
    """Scores held-out prompts with the same seeds every time, so that scores of different weights can be compared."""

    def __init__(self, options: LoopOptions, parts: Parts, recovery: Recovery, alarms: Alarms) -> None:
        self._options = options
        self._parts = parts
        self._recovery = recovery
        self._alarms = alarms

    def is_due(self, step: int) -> bool:
        """Return whether the weights after this step are scored; those after the last one always are, at the end."""
        every = self._options.evaluation.every_steps
        return bool(every) and step % every == 0 and step < self._options.algorithm.steps

    def is_missing(self, state: RunState) -> bool:
        """Return whether the weights that a run begins or goes on with are still to be scored."""
        if state.step == 0:
            return state.held_out_before is None
        return self.is_due(state.step) and state.evaluated_step != state.step

    def run(self, state: RunState) -> RunState:
        """Return the state with the score of its weights; without held-out prompts nothing happens."""
        parts, evaluation = self._parts, self._options.evaluation
        prompts = parts.prompts.held_out
        if not prompts:
            return state
        parts.recorder.activity(RuntimeActivity.EVALUATE)
        started_s = parts.clock.now_s()
        shape = BatchShape(len(prompts), evaluation.responses_per_prompt)
        policy = Synchronous(shape, DrawCursor(len(prompts), self._options.algorithm.seed))
        requests = RoundRequests(prompts, self._options.algorithm, "held-out", evaluation.temperature)
        observer = Evaluating(self._recovery, parts.recorder.progress)
        result = run_round(parts, policy, requests, observer)
        state = state.after_evaluation(HeldOutScore.of(result.groups, prompts))
        state = state.with_rewards(parts.rewards.export_state())
        parts.recorder.evaluation(state, parts.clock.now_s() - started_s)
        parts.records.keep_evaluation(EvaluationDone(state.step, result))
        self._alarms.evaluated(state)
        return state
