"""Compare synchronous rounds with tail batching where responses are episodes and environments have a long tail.

Both jobs play the same games with the same real engines, alternating in one run: a full period of tail batching, and as
many synchronous rounds (`benchmarks.period`). The model is warm-started, so that its turns end as turns do. What an
environment does is to wait. Its time is drawn by prompt and turn, and is the same whenever an episode begins again.

Figures are ratios of whole periods, tail batching over synchronous. `predictions` sets their medians alongside what the
simulator says from the synchronous rounds alone: turns, tokens and times of their episodes, and what their steps cost.
"""

import argparse
import dataclasses
import functools
import json
import math
import queue
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import yaml
from prometheus_client import CollectorRegistry

from benchmarks.local_pods import LocalPods, ray_head, run_pods
from benchmarks.period import Keep, Run, Step, policy_of, take_steps, totals
from benchmarks.prediction import predict
from benchmarks.report import report
from benchmarks.warm_model import write_warm_model
from benchmarks.workload import NoSink, loop_options, merged
from longshore.api.model import BuiltinTask
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore.rounds.messages import ResponseLength
from longshore.sim.lengths import TraceLengths
from longshore.sim.profile import DecodePoint, Profile
from longshore_runtime.checkpoints.run_state import RunState
from longshore_runtime.process.logs import configure_logging
from longshore_runtime.rollout.events import Event
from longshore_runtime.session.session import Session
from longshore_runtime.step.loop import TrainingLoop
from longshore_runtime.step.parts import Parts
from longshore_runtime.tasks import guessing
from longshore_runtime.telemetry.step_done import StepDone

ROUNDS_PER_PERIOD: Final = 5
FILE: Final = Path(__file__).with_suffix(".yaml")
_NUM_GAMES: Final = 2048
_WARM_START_STEPS: Final = 100
FIGURES: Final = ("rollout_s_per_trained_sample", "step_s", "tokens_trained_per_s", "bubble_share")


@functools.cache
def workload() -> dict[str, Any]:
    """Return the content of the file."""
    content: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return content


class SlowGuessing(guessing.Guessing):
    """The built-in game, in an environment that takes its time."""

    def reset(self, low: str, high: str, secret: str, **row: object) -> None:
        """Begin an episode."""
        super().reset(low, high, secret)
        self._prompt = random.Random(f"prompt/{row['number']}").gauss(0.0, workload()["seconds"]["promptSigma"])

    def reply(self, message: str) -> str | None:
        """Answer after a while."""
        seconds = workload()["seconds"]
        own = random.gauss(0.0, seconds["turnSigma"])  # Seeded with the episode.
        time.sleep(min(seconds["max"], seconds["median"] * math.exp(self._prompt + own)))
        return super().reply(message)


def measure(num_alternations: int) -> None:
    """Run the alternations and report, in the coordinator pod."""
    configure_logging()
    jobs = {name: _spec(changes) for name, changes in workload()["jobs"].items()}
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    status, sink = RuntimeStatus(), NoSink()
    with (
        ray_head() as settings,
        Session(settings, _spec({}), CollectorRegistry(), sink, status, events, LocalPods()) as session,
    ):
        write_warm_model(settings.storage / "model", BuiltinTask.GUESSING, _WARM_START_STEPS, seed=0)
        _write_games(settings.storage / "games.jsonl")
        parts = session.build()
        runs = [{name: _period(name, spec, parts) for name, spec in jobs.items()} for _ in range(num_alternations)]
    baseline, ours = ([run[name] for run in runs] for name in ("Synchronous", "TailBatching"))
    ratios = {key: [mine[key] / other[key] for mine, other in zip(ours, baseline, strict=True)] for key in FIGURES}
    predictions = predicted(jobs, baseline)
    settings_shown = {"alternations": num_alternations, "workload": f"benchmarks/{FILE.name}"}
    raw = [{key: value for key, value in run.items() if key != "episodes"} for run in (*baseline, *ours)]
    report(FILE.stem, ratios, settings_shown, raw, predictions=predictions)


def predicted(jobs: Mapping[str, RLJobSpec], baseline: Sequence[Run]) -> dict[str, float]:
    """Return the medians of the ratios that the simulator predicts from each period of synchronous rounds."""
    found = []
    for run in baseline:
        lengths = TraceLengths([run["episodes"].get(number, (1,)) for number in range(_NUM_GAMES)])
        of = {
            name: predict(spec, lengths, _costs(run["steps"]), ROUNDS_PER_PERIOD, num_prompts=_NUM_GAMES)
            for name, spec in jobs.items()
        }
        found.append({key: of["TailBatching"][key] / of["Synchronous"][key] for key in FIGURES})
    return {key: round(median(one[key] for one in found), 3) for key in FIGURES}


def _costs(steps: Sequence[Step]) -> Profile:
    """Return what the engines and trainers of these steps took; an engine is at work while a request is on it."""
    step_s = sum(one["busy_share"] * one["rollout_s"] for one in steps) / sum(one["decode_steps"] for one in steps)
    return Profile(
        decode=[DecodePoint(tp_size=1, num_running=1, context_tokens=tokens, step_s=step_s) for tokens in (0, 10_000)],
        prefill_tokens_per_s=1e12,
        kv_capacity_tokens={1: 100_000},
        train_tokens_per_s=1e12,
        optimizer_s=fmean(one["train_s"] for one in steps),
        publish_s=fmean(one["publish_s"] for one in steps),
        to_training_s=0.0,
        to_rollout_s=0.0,
    )


class KeepEpisodes(Keep):
    """Recorder that keeps the episodes that were trained on, too."""

    def __init__(self) -> None:
        super().__init__()
        self.episodes: dict[int, tuple[ResponseLength, ...]] = {}
        """Lengths by the row of the data."""

    def step(self, state: RunState, done: StepDone) -> None:
        super().step(state, done)
        for group in done.result.groups:
            self.episodes[group.draw.index] = tuple(one.completion.length for one in group.responses)


def _spec(changes: dict[str, Any]) -> RLJobSpec:
    return RLJobSpec.model_validate(merged(workload()["spec"], changes))


def _write_games(path: Path) -> None:
    rows = [
        {"prompt": row.prompt, "answer": row.answer, "number": number, **asdict(row)}
        for number, row in enumerate(guessing.generate(_NUM_GAMES, seed=0))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _period(name: str, spec: RLJobSpec, parts: Parts) -> Run:
    recorder = KeepEpisodes()
    own = dataclasses.replace(parts, policy=policy_of(spec, parts), recorder=recorder)
    take_steps(TrainingLoop(loop_options(spec), own), spec, own, ROUNDS_PER_PERIOD)
    return {"job": name, **totals(recorder.steps), "steps": recorder.steps, "episodes": recorder.episodes}


def main() -> int:
    """Start the pods, or, in the coordinator pod, measure; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alternations", type=int, default=5)
    return run_pods("agents", parser, lambda given: measure(given.alternations), _spec({}))


if __name__ == "__main__":
    raise SystemExit(main())
