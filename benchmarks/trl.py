"""Compare TRL's GRPOTrainer with a Longshore job.

Both have the same model, prompts, number of responses, response limit and learning settings, on the same processor
cores, one after the other, each in processes of its own.

A run is a whole training from the warm-started model of its seed, or from the given one: it starts, scores the
held-out prompts, trains, and scores them again in between. Each seed begins with another side. Seconds are those of the
steps alone: sampling, scoring, the update, the new weights in the engine, and what a side records of it. Starting and
evaluating are in `whole_s`.

`Synchronous` trains on the same prompts as TRL in the same order. `TailBatching` trains on as many, and its last steps
take those that still wait. `ratios` are TRL's figures over those of Longshore with the same seed: above 1, Longshore
takes less. Those `without_limit` leave out the steps in which a response reached the limit.

With `--model`, the directory of a real model, jobs and sides are those of `trl_model.yaml`: TRL with its default type,
bfloat16, and with float32, and jobs with the type that the processor computes faster, and with float32.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

from benchmarks.local_pods import run_in_coordinator
from benchmarks.report import report, spreads
from benchmarks.trl_task import MODEL_SIDES, ROOT, TRL_PYTHON, TRL_SIDES, TrlSide, task_of
from benchmarks.warm_model import write_warm_model
from benchmarks.workload import Workload, merged
from longshore.api.model import BuiltinTask
from longshore.api.spec import RLJobSpec
from longshore_runtime.sandbox.linux import adopt_orphans

WORKLOAD: Final = Workload(Path(__file__).with_suffix(".yaml"))
MODEL_WORKLOAD: Final = Workload(Path(__file__).with_name("trl_model.yaml"))
WARM_START_STEPS: Final = 300
STEPS_PER_PERIOD: Final = 5
"""Steps after which tail batching has trained all that it has started: four short rounds and a long one."""
LIMIT_S: Final = 1800.0
"""Seconds that no run takes; one that does hangs."""

Run = dict[str, Any]


def main() -> int:
    """Train with every side for every seed; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="Hugging Face directory; unset: the built-in tiny model")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="unset: those of the workload")
    parser.add_argument("--evaluate-every", type=int, default=5, help="steps")
    parser.add_argument("--sides", nargs="+", help="unset: all")
    given = parser.parse_args()
    workload, trl_sides = (WORKLOAD, TRL_SIDES) if given.model is None else (MODEL_WORKLOAD, MODEL_SIDES)
    given.steps = given.steps or workload.spec.algorithm.steps
    given.sides = given.sides or [*trl_sides, *workload.jobs]
    if unknown := set(given.sides) - {*trl_sides, *workload.jobs}:
        parser.error(f"--sides: {', '.join(unknown)}: choose of {', '.join((*trl_sides, *workload.jobs))}")
    if given.steps % STEPS_PER_PERIOD and "TailBatching" in given.sides:
        parser.error(f"--steps must be a multiple of {STEPS_PER_PERIOD}, so that TailBatching trains as many prompts")
    if not TRL_PYTHON.exists() and any(side in trl_sides for side in given.sides):
        print("trl: TRL is not installed: run `make bench NAME=trl`, which installs it", file=sys.stderr)
        return 2
    adopt_orphans()
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="ls-trl-") as directory:
        for index, seed in enumerate(given.seeds):
            model = given.model or warm_started(Path(directory) / f"model-{seed}", seed)
            first = index % len(given.sides)
            for side in (*given.sides[first:], *given.sides[:first]):
                spec = spec_of(workload, side, seed, given.steps)
                trl = trl_sides.get(side)
                found = run(side, trl, spec, model.absolute(), given.evaluate_every, Path(directory))
                limit = spec.algorithm.max_response_tokens
                runs.append({"side": side, "seed": seed, **found, **totals(found["steps"], limit)})
                print({key: value for key, value in runs[-1].items() if key != "steps"}, file=sys.stderr)
    settings = {"seeds": given.seeds, "steps": given.steps, "workload": f"benchmarks/{workload.path.name}"}
    if given.model is not None:
        settings["model"] = given.model.name
    compared = ratios(runs, list(trl_sides), list(workload.jobs))
    name = "trl" if given.model is None else "trl_model"
    report(name, compared, settings, runs, figures=spreads(figures(runs)), held_out=held_out(runs))
    return 0


def warm_started(directory: Path, seed: int) -> Path:
    """Make the model that all runs of a seed begin with, and return its directory."""
    directory.mkdir()
    write_warm_model(directory, BuiltinTask.COUNTING, WARM_START_STEPS, seed)
    return directory


def spec_of(workload: Workload, side: str, seed: int, num_steps: int) -> RLJobSpec:
    """Return the job of a side; the sides of TRL get the settings of theirs."""
    spec = workload.jobs.get(side, workload.spec).model_dump(by_alias=True, exclude_unset=True, mode="json")
    return RLJobSpec.model_validate(merged(spec, {"algorithm": {"seed": seed, "steps": num_steps}}))


def run(side: str, trl: TrlSide | None, spec: RLJobSpec, model: Path, evaluate_every: int, parent: Path) -> Run:
    """Make one training, with TRL if that is given; raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        result = Path(directory) / "result.json"
        if trl is not None:
            _run_trl(trl, spec, model, evaluate_every, result)
        else:
            arguments = [str(model), str(evaluate_every), str(result)]
            if status := run_in_coordinator("benchmarks.timed_job", arguments, spec):
                raise RuntimeError(f"{side}: the coordinator ended with {status}")
        found: Run = json.loads(result.read_text(encoding="utf-8"))
        return found


def _run_trl(side: TrlSide, spec: RLJobSpec, model: Path, evaluate_every: int, result: Path) -> None:
    task, log = result.with_name("task.json"), result.with_name("log")
    task.write_text(json.dumps(task_of(spec, model, side, evaluate_every)), encoding="utf-8")
    with log.open("wb") as output:
        done = subprocess.run(
            [TRL_PYTHON, *side.launcher, "-m", "benchmarks.trl_side", str(task), str(result)],
            env=side.environment(ROOT, os.environ, len(os.sched_getaffinity(0))),
            cwd=result.parent,
            stdout=output,
            stderr=output,
            timeout=LIMIT_S,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"TRL ended with {done.returncode}:\n{log.read_text(errors='replace')[-8000:]}")


FIGURES: Final = (
    "step_s",
    "step_cpu_s",
    "tokens_per_step",
    "ms_per_token",
    "cpu_ms_per_token",
    "without_limit/steps",
    "without_limit/step_s",
    "without_limit/step_cpu_s",
    "without_limit/ms_per_token",
    "without_limit/cpu_ms_per_token",
)
COMPARED: Final = tuple(name for name in FIGURES if name not in ("tokens_per_step", "without_limit/steps"))


def totals(steps: Sequence[Mapping[str, float]], limit: int) -> dict[str, float]:
    """Return means of all steps, and of those in which no response reached the limit, if there are any."""
    below = [step for step in steps if step["max_tokens"] < limit]
    means = {f"without_limit/{name}": value for name, value in (_means(below) if below else {}).items()}
    return {**_means(steps), **means, "without_limit/steps": len(below)}


def _means(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return means of these steps; tokens are those of responses that are trained on."""
    num_steps, num_tokens = len(steps), sum(step["tokens"] for step in steps)
    seconds, cpu_seconds = (sum(step[name] for step in steps) for name in ("step_s", "cpu_s"))
    return {
        "step_s": seconds / num_steps,
        "step_cpu_s": cpu_seconds / num_steps,
        "tokens_per_step": num_tokens / num_steps,
        "ms_per_token": 1000 * seconds / num_tokens,
        "cpu_ms_per_token": 1000 * cpu_seconds / num_tokens,
    }


def of(runs: Sequence[Run], side: str) -> list[Run]:
    """Return the runs of a side, in the order of their seeds."""
    return sorted((one for one in runs if one["side"] == side), key=lambda one: one["seed"])


def figures(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Return the figures of every side, by seed."""
    found: dict[str, list[float]] = defaultdict(list)
    for one in runs:
        for name in FIGURES:
            if name in one:
                found[f"{one['side']}/{name}"].append(one[name])
    return found


def ratios(runs: Sequence[Run], trl_sides: Sequence[str], jobs: Sequence[str]) -> dict[str, list[float]]:
    """Return the figures of every side of TRL over those of every job, by seed."""
    found: dict[str, list[float]] = defaultdict(list)
    for theirs, ours in itertools.product(trl_sides, jobs):
        for a, b in zip(of(runs, theirs), of(runs, ours), strict=False):  # One of them may not have been run.
            for name in COMPARED:
                if name in a and name in b:
                    found[f"{theirs}/{ours}/{name}"].append(a[name] / b[name])
    return found


def held_out(runs: Sequence[Run]) -> dict[str, dict[str, dict[str, float]]]:
    """Return learning curves: by side and step, mean held-out reward over the seeds and its standard deviation."""
    curves: dict[str, dict[str, dict[str, float]]] = {}
    for side in dict.fromkeys(one["side"] for one in runs):
        points = zip(*(one["evaluations"] for one in of(runs, side)), strict=True)
        curves[side] = {str(point[0]["step"]): _mean_and_spread([one["reward"] for one in point]) for point in points}
    return curves


def _mean_and_spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": round(fmean(values), 3), "sd": round(stdev(values), 3) if len(values) > 1 else 0.0}


if __name__ == "__main__":
    raise SystemExit(main())
