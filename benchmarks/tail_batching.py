"""Synchronous rounds against tail batching: same model, same draws, same real engines, alternating in one run.

One alternation is a full period of each: as many rounds as tail batching needs to train every draw that it started
(four short rounds and a long one at eta = 1.25), and as many synchronous ones. Both begin with the same weights and the
same position in the data, and train equally many samples.

The model is tiny and never ends a response by itself; `tail_batching.yaml` says how long each one gets, so that the
tail is that of a known distribution and every token of it is really decoded, scored and trained on.

Figures are ratios of whole periods, tail batching over synchronous. On a CPU the time of a decode step grows with the
number of running responses, which a GPU hides up to large batches: there, expect the rollout time to follow the ratio
of decode steps rather than that of the seconds measured here.
"""

import argparse
import dataclasses
import json
import math
import queue
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry

from benchmarks.local_pods import in_coordinator, ray_head, run_in_coordinator
from benchmarks.report import report
from longshore.api.rollout import Rollout, Strategy
from longshore.api.spec import RLJobSpec
from longshore.api.status import RuntimeStatus
from longshore.policy.draws import DrawCursor
from longshore.policy.presets import round_policy
from longshore.policy.round import ResponseId
from longshore.policy.round_policy import BatchShape
from longshore_runtime.logs import configure_logging
from longshore_runtime.rollout.batch import RoundResult
from longshore_runtime.rollout.events import Event
from longshore_runtime.run_state import RunState
from longshore_runtime.session import Session
from longshore_runtime.telemetry.recorder import Recorder
from longshore_runtime.telemetry.step_metrics import StepTimes
from longshore_runtime.training import LoopOptions, Parts, TrainingLoop
from longshore_runtime.types import Completion, Request, Sample, TrainResult

WORKLOAD = Path(__file__).with_suffix(".yaml")
ROUNDS_PER_PERIOD = 5

FIGURES = (
    "rollout_s_per_trained_sample",
    "decode_steps_per_trained_sample",
    "step_s",
    "tokens_trained_per_s",
    "bubble_share",
)

Step = dict[str, Any]
Run = dict[str, Any]


class NoSink:
    """There is no API server to report to."""

    def report(self, status: RuntimeStatus) -> None:
        """Nobody listens."""

    def close(self) -> None:
        """Nothing waits."""


class Keep(Recorder):
    """Keeps the figures of every step, and writes nothing."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def step(
        self,
        state: RunState,
        result: RoundResult,
        samples: Sequence[Sample],
        trained: TrainResult,
        times: StepTimes,
        queue_length: int,
    ) -> None:
        self.steps.append(
            {
                "kind": result.end.kind.value,
                "samples": len(samples),
                "tokens": trained.sums.num_tokens,
                "max_tokens": max(len(sample.response_tokens) for sample in samples),
                "rollout_s": times.gen_s,
                "step_s": times.step_s,
                "busy_share": result.busy_share,
                "sampled_tokens": result.num_sampled_tokens,
                "decode_steps": result.num_steps,
                "draws": sorted(str(group.draw) for group in result.groups),
            }
        )

    def activity(self, activity: str) -> None:
        """Not kept."""

    def resume(self, state: RunState, exported: Any) -> None:
        """Not kept."""

    def begin(self) -> None:
        """Not kept."""

    def export(self) -> dict[str, int]:
        return {}

    def checkpoint(self, checkpoint: Any) -> None:
        """Not kept."""

    def round_progress(self, state: RunState, progress: Any) -> None:
        """Not kept."""


@dataclasses.dataclass(frozen=True)
class ResponseTokens:
    """Lognormal lengths: exp(N(log median, promptSigma) + N(0, responseSigma)), cut at max."""

    median: float
    promptSigma: float  # noqa: N815 - as in the file
    responseSigma: float  # noqa: N815
    max: int
    seed: int

    def of(self, response: ResponseId) -> int:
        """Length of one response: the same whenever and wherever it is sampled."""
        prompt = random.Random(f"{self.seed}/{response.draw}").gauss(math.log(self.median), self.promptSigma)
        own = random.Random(f"{self.seed}/{response}").gauss(0.0, self.responseSigma)
        return max(1, min(self.max, round(math.exp(prompt + own))))


class GivenLengths(TrainingLoop):
    """The training loop, with responses as long as the workload says."""

    def __init__(self, options: LoopOptions, parts: Parts, lengths: ResponseTokens) -> None:
        super().__init__(options, parts)
        self._lengths = lengths

    def _training_request(self, response: ResponseId, kept: Completion | None) -> Request:
        request = super()._training_request(response, kept)
        return dataclasses.replace(request, max_tokens=self._lengths.of(response))


def parity(prompt: str, response: str, answer: str) -> float:
    """A reward that differs within groups, so that every group has gradients."""
    return float(sum(map(ord, response)) % 2)


def endless_model(directory: Path) -> None:
    """The tiny model without an end token: what it samples ends at the length that it is given, and nowhere else."""
    from longshore_runtime.backends.tiny_model import build_tiny_model, build_tokenizer

    build_tiny_model(directory, seed=0)
    tokenizer = build_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(directory)
    for name in ("config.json", "generation_config.json"):
        config = json.loads((directory / name).read_text())
        config.pop("eos_token_id", None)
        (directory / name).write_text(json.dumps(config))


def period(options: LoopOptions, parts: Parts, lengths: ResponseTokens, strategy: Strategy) -> list[Step]:
    """Five rounds from the same weights and the same place in the data."""
    algorithm = options.algorithm
    shape = BatchShape(algorithm.prompts_per_step, algorithm.responses_per_prompt)
    policy = round_policy(Rollout(strategy=strategy), shape, DrawCursor(len(parts.prompts.train), algorithm.seed))
    recorder = Keep()
    loop = GivenLengths(options, dataclasses.replace(parts, policy=policy, recorder=recorder), lengths)
    loop.restore()
    if parts.checkpoints.newest() is None:
        loop.checkpoint()
    for _ in range(ROUNDS_PER_PERIOD):
        loop.step(draining=False)
    return recorder.steps


def totals(steps: list[Step]) -> dict[str, float]:
    """Figures of one period."""
    samples, seconds = sum(s["samples"] for s in steps), sum(s["step_s"] for s in steps)
    rollout_s = sum(s["rollout_s"] for s in steps)
    return {
        "rollout_s_per_trained_sample": rollout_s / samples,
        "decode_steps_per_trained_sample": sum(s["decode_steps"] for s in steps) / samples,
        "step_s": seconds / len(steps),
        "tokens_trained_per_s": sum(s["tokens"] for s in steps) / seconds,
        "bubble_share": 1.0 - sum(s["busy_share"] * s["rollout_s"] for s in steps) / rollout_s,
    }


def measure(num_alternations: int) -> None:
    """In the coordinator pod: run the alternations and report."""
    configure_logging()
    spec, lengths = _workload()
    options = LoopOptions(spec.algorithm, spec.evaluation, spec.rollout.on_finish, spec.reward.on_error, 10**6)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    baseline: list[Run] = []
    ours: list[Run] = []
    with (
        ray_head() as settings,
        Session(settings, spec, CollectorRegistry(), NoSink(), RuntimeStatus(), events) as session,
    ):
        endless_model(settings.storage / "model")
        parts = session.build()
        for strategy in (Strategy.SYNCHRONOUS, Strategy.TAIL_BATCHING):
            period(options, parts, lengths, strategy)  # Warms up.
        for number in range(num_alternations):
            for strategy, runs in ((Strategy.SYNCHRONOUS, baseline), (Strategy.TAIL_BATCHING, ours)):
                steps = period(options, parts, lengths, strategy)
                runs.append({"alternation": number, "strategy": strategy.value, **totals(steps), "steps": steps})
    assert _num_samples(ours) == _num_samples(baseline), "both must train equally many samples"
    ratios = {key: [mine[key] / other[key] for mine, other in zip(ours, baseline, strict=True)] for key in FIGURES}
    settings_of_run = {"alternations": num_alternations, "workload": f"benchmarks/{WORKLOAD.name}"}
    report("tail_batching", ratios, settings_of_run, [*baseline, *ours])


def main() -> int:
    """Start the pods, or, in the coordinator pod, measure; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alternations", type=int, default=7)
    arguments = parser.parse_args()
    if in_coordinator():
        measure(arguments.alternations)
        return 0
    return run_in_coordinator("benchmarks.tail_batching", sys.argv[1:], _workload()[0].workers.replicas)


def _workload() -> tuple[RLJobSpec, ResponseTokens]:
    workload = yaml.safe_load(WORKLOAD.read_text(encoding="utf-8"))
    return RLJobSpec.model_validate(workload["spec"]), ResponseTokens(**workload["responseTokens"])


def _num_samples(runs: list[Run]) -> int:
    return sum(step["samples"] for run in runs for step in run["steps"])


if __name__ == "__main__":
    raise SystemExit(main())
