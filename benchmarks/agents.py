"""Compare synchronous rounds with tail batching where responses are episodes and environments have a long tail.

Both jobs play the same games with the same real engines, alternating in one run: a full period of tail batching, and as
many synchronous rounds (`benchmarks.period`). The model is warm-started, so that its turns end as turns do. What an
environment does is to wait. Its time is drawn by prompt and turn, and is the same whenever an episode begins again.

Figures are ratios of whole periods, tail batching over synchronous.
"""

import argparse
import dataclasses
import functools
import json
import math
import queue
import random
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import yaml
from prometheus_client import CollectorRegistry

from benchmarks.local_pods import LocalPods, ray_head, run_pods
from benchmarks.period import Keep, Run, policy_of, take_steps, totals
from benchmarks.report import report
from benchmarks.workload import NoSink, loop_options, merged
from longshore.api.model import BuiltinTask
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore_runtime.process.logs import configure_logging
from longshore_runtime.rollout.events import Event
from longshore_runtime.session.session import Session
from longshore_runtime.step.loop import TrainingLoop
from longshore_runtime.step.parts import Parts
from longshore_runtime.tasks import guessing

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
    from longshore_runtime.backends.warm_start import warm_start

    configure_logging()
    jobs = {name: _spec(changes) for name, changes in workload()["jobs"].items()}
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    status, sink = RuntimeStatus(), NoSink()
    with (
        ray_head() as settings,
        Session(settings, _spec({}), CollectorRegistry(), sink, status, events, LocalPods()) as session,
    ):
        warm_start(settings.storage / "model", BuiltinTask.GUESSING, _WARM_START_STEPS, seed=0)
        _write_games(settings.storage / "games.jsonl")
        parts = session.build()
        runs = [{name: _period(name, spec, parts) for name, spec in jobs.items()} for _ in range(num_alternations)]
    baseline, ours = ([run[name] for run in runs] for name in ("Synchronous", "TailBatching"))
    ratios = {key: [mine[key] / other[key] for mine, other in zip(ours, baseline, strict=True)] for key in FIGURES}
    settings_shown = {"alternations": num_alternations, "workload": f"benchmarks/{FILE.name}"}
    report(FILE.stem, ratios, settings_shown, [*baseline, *ours])


def _spec(changes: dict[str, Any]) -> RLJobSpec:
    return RLJobSpec.model_validate(merged(workload()["spec"], changes))


def _write_games(path: Path) -> None:
    rows = [
        {"prompt": row.prompt, "answer": row.answer, "number": number, **asdict(row)}
        for number, row in enumerate(guessing.generate(_NUM_GAMES, seed=0))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _period(name: str, spec: RLJobSpec, parts: Parts) -> Run:
    recorder = Keep()
    own = dataclasses.replace(parts, policy=policy_of(spec, parts), recorder=recorder)
    take_steps(TrainingLoop(loop_options(spec), own), spec, own, ROUNDS_PER_PERIOD)
    return {"job": name, **totals(recorder.steps), "steps": recorder.steps}


def main() -> int:
    """Start the pods, or, in the coordinator pod, measure; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alternations", type=int, default=5)
    return run_pods("agents", parser, lambda given: measure(given.alternations), _spec({}))


if __name__ == "__main__":
    raise SystemExit(main())
