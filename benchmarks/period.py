"""Run periods of training, job by job in turn on the same engines.

The rounds of a period train every draw that they start, so that jobs compare sample by sample.
"""

import contextlib
import dataclasses
import queue
from collections.abc import Iterator, Sequence
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from benchmarks.local_pods import LocalPods, ray_head
from benchmarks.workload import GivenLengths, NoSink, ResponseTokens, Workload, endless_model, loop_options
from longshore.api.runtime_status import ProgressUnit, RuntimeActivity, RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore.policy.draws import DrawCursor
from longshore.policy.round_policy import BatchShape, RoundPolicy
from longshore.policy.strategies import round_policy
from longshore_runtime.checkpoints.run_state import RunState
from longshore_runtime.process.logs import configure_logging
from longshore_runtime.rollout.events import Event
from longshore_runtime.session.session import Session
from longshore_runtime.step.loop import TrainingLoop
from longshore_runtime.step.parts import Parts
from longshore_runtime.telemetry.recorder import Recorder
from longshore_runtime.telemetry.step_done import StepDone
from longshore_runtime.trainer.updates import off_policy_token_share

log = structlog.get_logger()

_SHOWN = ("kind", "samples", "tokens", "rollout_s", "train_s", "publish_s", "step_s", "decode_steps")
"""Figures that a person sees while a benchmark runs."""

Step = dict[str, Any]
Run = dict[str, Any]


def figures_of(done: StepDone) -> Step:
    """Return what benchmarks say of a step."""
    result, trained, times = done.result, done.trained, done.times
    return {
        "kind": result.end.kind.value,
        "samples": len(trained.samples),
        "tokens": trained.sums.num_tokens,
        "max_tokens": max(sample.num_response_tokens for sample in trained.samples),
        "rollout_s": times.gen_s,
        "step_s": times.step_s,
        "train_s": times.train_s,
        "publish_s": times.publish_s,
        "reward_s": times.reward_s,
        "busy_share": result.busy_share,
        "sampled_tokens": result.num_sampled_tokens,
        "decode_steps": result.num_steps,
        "off_policy_token_share": off_policy_token_share(trained.samples),
        "trainer_compute_s": trained.compute_s,
        "first_dispatch_s": trained.first_dispatch_s,
        "updates": len(trained.updates),
        "queue_length": done.queue_length,
        "draws": sorted(str(group.draw) for group in result.groups),
    }


class Keep(Recorder):
    """Recorder that keeps the figures of every step, and writes nothing but a line of each to the log."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def step(self, state: RunState, done: StepDone) -> None:
        figures = figures_of(done)
        self.steps.append(figures)
        shown = {name: figures[name] for name in _SHOWN}
        log.info(
            "step", **{name: round(value, 3) if isinstance(value, float) else value for name, value in shown.items()}
        )

    def activity(self, activity: RuntimeActivity) -> None:
        """Do nothing: only steps are kept."""

    def progress(self, unit: ProgressUnit, done: int, total: int, detail: str = "") -> None:
        """Do nothing: only steps are kept."""

    def resume(self, state: RunState, exported: Any) -> None:
        """Do nothing: only steps are kept."""

    def begin(self) -> None:
        """Do nothing: only steps are kept."""

    def export(self) -> dict[str, int]:
        return {}

    def checkpoint(self, checkpoint: Any) -> None:
        """Do nothing: only steps are kept."""

    def round_progress(self, state: RunState, progress: Any) -> None:
        """Do nothing: only steps are kept."""

    def notice(self, reason: str, message: str) -> None:
        """Do nothing: only steps are kept."""

    def alarms(self, raised: Any) -> None:
        """Do nothing: only steps are kept."""


def policy_of(spec: RLJobSpec, parts: Parts) -> RoundPolicy:
    """Return the round policy of a job, at the beginning of the data."""
    algorithm = spec.algorithm
    return round_policy(
        spec.rollout,
        BatchShape(algorithm.prompts_per_step, algorithm.responses_per_prompt),
        DrawCursor(len(parts.prompts.train), algorithm.seed),
        groups_per_update=algorithm.groups_per_update,
        dynamic_sampling=algorithm.dynamic_sampling,
    )


def take_steps(loop: TrainingLoop, spec: RLJobSpec, parts: Parts, num_rounds: int) -> None:
    """Make the rounds of a period; the last ones train whatever waits."""
    loop.restore()
    if parts.checkpoints.newest() is None:
        loop.checkpoint()
    for number in range(num_rounds):
        loop.step(draining=parts.policy.num_deferred >= (num_rounds - number) * spec.algorithm.prompts_per_step)
    assert parts.policy.num_deferred == 0, "a period trains every draw that it starts"


def period(
    spec: RLJobSpec, parts: Parts, lengths: ResponseTokens, num_rounds: int, recorder: Keep | None = None
) -> list[Step]:
    """Make rounds from the same weights and place in the data; the last ones train whatever waits."""
    recorder = recorder or Keep()
    own = dataclasses.replace(parts, policy=policy_of(spec, parts), recorder=recorder)
    take_steps(GivenLengths(loop_options(spec), own, lengths), spec, own, num_rounds)
    return recorder.steps


def totals(steps: Sequence[Step]) -> dict[str, float]:
    """Return the figures of one period: sums over sums, or means over the steps."""
    num_samples, num_tokens = sum(step["samples"] for step in steps), sum(step["tokens"] for step in steps)
    rollout_s, step_s = sum(step["rollout_s"] for step in steps), sum(step["step_s"] for step in steps)
    compute_s = sum(step["trainer_compute_s"] for step in steps)
    return {
        "rollout_s_per_trained_sample": rollout_s / num_samples,
        "decode_steps_per_trained_sample": sum(step["decode_steps"] for step in steps) / num_samples,
        "step_s": step_s / len(steps),
        "tokens_trained_per_s": num_tokens / step_s,
        "bubble_share": 1.0 - sum(step["busy_share"] * step["rollout_s"] for step in steps) / rollout_s,
        "off_policy_token_share": sum(step["off_policy_token_share"] * step["tokens"] for step in steps) / num_tokens,
        "trainer_waiting_ratio": 1.0 - compute_s / (step_s - sum(step["publish_s"] for step in steps)),
        "first_dispatch_s": sum(step["first_dispatch_s"] for step in steps) / len(steps),
    }


@contextlib.contextmanager
def running(workload: Workload) -> Iterator[Parts]:
    """Run engines, trainers and rewards of a workload within the block, in the coordinator pod."""
    configure_logging()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    with (
        ray_head() as settings,
        Session(
            settings, workload.spec, CollectorRegistry(), NoSink(), RuntimeStatus(), events, LocalPods()
        ) as session,
    ):
        endless_model(settings.storage / "model", workload.model)
        yield session.build()


def alternate(workload: Workload, parts: Parts, num_rounds: int) -> dict[str, Run]:
    """Run one period of every job in turn."""
    runs: dict[str, Run] = {}
    for name, spec in workload.jobs.items():
        steps = period(spec, parts, workload.lengths, num_rounds)
        runs[name] = {"job": name, **totals(steps), "steps": steps}
    assert len({sum(step["samples"] for step in run["steps"]) for run in runs.values()}) == 1, "unequal work"
    return runs
