"""Run the training loop step by step: wall seconds, and CPU seconds of all pods.

Evaluations lie between the steps.
"""

import json
import os
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.process_tree import cpu_s
from benchmarks.workload import loop_options
from longshore.api.spec import RLJobSpec
from longshore_runtime.step.loop import TrainingLoop
from longshore_runtime.step.parts import Parts

COLUMNS: Final = {
    "reward": "critic/score/mean",
    "max_tokens": "response_length/max",
    "rollout_s": "timing_s/gen",
    "reward_wait_s": "timing_s/reward",
    "train_s": "timing_s/update_actor",
    "publish_s": "timing_s/update_weights",
    "sampled_tokens": "response/sampled_tokens",
    "decode_steps": "round/num_steps",
    "is_long": "round/is_long",
}

Step = dict[str, float]


class TimedLoop(TrainingLoop):
    """Training loop that runs steps one by one; the root of the pods is the parent of this process."""

    def timed_step(self, *, draining: bool) -> Step:
        """Make a step; return the seconds until it is recorded, and the CPU seconds of all pods."""
        pods = os.getppid()
        begun_cpu_s, begun_s = cpu_s(pods), time.monotonic()
        self.step(draining=draining)
        return {"step_s": time.monotonic() - begun_s, "cpu_s": cpu_s(pods) - begun_cpu_s}

    def evaluate(self) -> Step:
        """Return the held-out reward of the present weights."""
        self._state = self._evaluator.run(self._state)
        score = self._state.held_out_latest
        assert score is not None and score.overall is not None, "the job has held-out prompts"
        return {"step": self._state.step, "reward": score.overall}


def timed_steps(spec: RLJobSpec, parts: Parts, evaluate_every_steps: int) -> tuple[list[Step], list[Step]]:
    """Make all steps of a job, the last of which train whatever waits, with evaluations before and between them."""
    policy, algorithm = parts.policy, spec.algorithm
    loop = TimedLoop(loop_options(spec), parts)
    loop.restore()
    evaluations = [loop.evaluate()]
    loop.checkpoint()
    steps = []
    for number in range(1, algorithm.steps + 1):
        num_left = algorithm.steps + 1 - number
        steps.append(loop.timed_step(draining=policy.num_deferred >= num_left * algorithm.prompts_per_step))
        if number % evaluate_every_steps == 0:
            evaluations.append(loop.evaluate())
    assert policy.num_deferred == 0, "every draw that was started is trained"
    return [
        step | recorded for step, recorded in zip(steps, _recorded(spec, parts.storage.output_dir), strict=True)
    ], evaluations


def _recorded(spec: RLJobSpec, output: Path) -> list[Step]:
    """Return what the job's own metrics say of every step."""
    num_responses = spec.algorithm.prompts_per_step * spec.algorithm.responses_per_prompt
    lines: list[dict[str, Any]] = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: line[column] for name, column in COLUMNS.items()}
        | {"tokens": round(line["response_length/mean"] * num_responses)}
        for line in lines
        if "timing_s/step" in line
    ]
