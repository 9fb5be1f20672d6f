"""What is learned, and how fast: rollout strategies side by side on the quickstart's task, paired by seed.

Every run starts from the same warm-started model of its seed, on real engines and trainers and without a cluster. The
held-out reward, of all prompts and of the quartile with the longest answers, is compared with that of `Synchronous` by
step, and by second up to the moment at which the quicker of the two has ended. Long answers are the right ones for long
prompts, so a strategy that prefers short responses shows.
"""

import argparse
import queue
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import yaml
from prometheus_client import CollectorRegistry

from benchmarks.local_pods import in_coordinator, ray_head, run_in_coordinator
from benchmarks.report import report
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore_runtime.elastic.job_watch import NoOperator
from longshore_runtime.logs import configure_logging
from longshore_runtime.session import Session
from longshore_runtime.settings import Settings

MANIFEST: Final = Path(__file__).parents[1] / "manifests/quickstart.yaml"
BASELINE: Final = "Synchronous"
VARIANTS: Final[Mapping[str, dict[str, Any]]] = {
    BASELINE: {"strategy": "Synchronous"},
    "TailBatching": {"strategy": "TailBatching"},
    "TailBatching, both factors 1.25": {"strategy": "TailBatching", "tailBatching": {"responseFactor": 1.25}},
    "ReorderRollout": {"strategy": "ReorderRollout"},
    "GroupPipeline": {"strategy": "GroupPipeline"},
    "TailBatching, streamed": {
        "strategy": "TailBatching",
        "handover": "Streamed",
        "repurposing": {"trigger": "Never"},
    },
    "Auto": {"strategy": "Auto"},
    "PartialRollout": {"strategy": "PartialRollout", "onPolicy": "Relaxed"},
}
T_975: Final = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Quantile of Student's t for the 95 % interval, by degrees of freedom."""

Run = dict[str, Any]


@dataclass
class Evaluations:
    """A status sink that keeps each evaluation, with when it came."""

    points: list[dict[str, float]] = field(default_factory=list)
    _began_s: float | None = None

    def report(self, status: RuntimeStatus) -> None:
        """Remember an evaluation that is new; seconds count from the one before the first step."""
        found = status.held_out
        reward, long = (found.before, found.long_before) if found.latest is None else (found.latest, found.long_latest)
        if reward is None or long is None or (self.points and self.points[-1]["reward"] == reward):
            return
        if self._began_s is None:
            self._began_s = time.monotonic()
        seconds = time.monotonic() - self._began_s
        self.points.append({"step": status.step, "seconds": seconds, "reward": reward, "long": long})

    def close(self) -> None:
        """Nothing waits."""


def train(settings: Settings, variant: str, seed: int, steps: int) -> Run:
    """One whole run."""
    evaluations = Evaluations()
    spec = _spec(variant, seed, steps)
    with Session(
        settings, spec, CollectorRegistry(), evaluations, RuntimeStatus(), queue.SimpleQueue(), NoOperator()
    ) as session:
        session.run(session.build())
    first, last = evaluations.points[0], evaluations.points[-1]
    return {
        "variant": variant,
        "seed": seed,
        "reward": last["reward"],
        "long": last["long"],
        "gain": last["reward"] - first["reward"],
        "step_s": (last["seconds"] - first["seconds"]) / steps,
        "points": evaluations.points,
    }


def at_seconds(points: Sequence[Mapping[str, float]], seconds: float, kind: str) -> float:
    """A figure of the evaluations at a moment between two of them."""
    for before, after in pairwise(points):
        if seconds <= after["seconds"]:
            share = (seconds - before["seconds"]) / (after["seconds"] - before["seconds"])
            return before[kind] + share * (after[kind] - before[kind])
    return points[-1][kind]


def at_equal_seconds(run: Run, base: Run, kind: str) -> float:
    """What a run has more than its baseline when the quicker of the two has ended."""
    end_s = min(run["points"][-1]["seconds"], base["points"][-1]["seconds"])
    return at_seconds(run["points"], end_s, kind) - at_seconds(base["points"], end_s, kind)


def interval(values: Sequence[float]) -> dict[str, float]:
    """Mean and its 95 % interval."""
    mean = statistics.mean(values)
    half = T_975[len(values) - 1] * statistics.stdev(values) / len(values) ** 0.5
    return {"low": round(mean - half, 3), "mean": round(mean, 3), "high": round(mean + half, 3)}


def compared(runs: Sequence[Run], variants: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Each variant's figures, and its differences from the baseline of the same seed."""
    of = {(run["variant"], run["seed"]): run for run in runs}
    seeds = sorted({run["seed"] for run in runs})
    table: dict[str, dict[str, Any]] = {}
    for variant in variants:
        pairs = [(of[variant, seed], of[BASELINE, seed]) for seed in seeds]
        table[variant] = {kind: interval([run[kind] for run, _ in pairs]) for kind in ("reward", "long", "gain")}
        table[variant]["step_s"] = round(statistics.median(run["step_s"] for run, _ in pairs), 3)
        if variant != BASELINE:
            for kind in ("reward", "long"):
                table[variant][f"{kind}_less_baseline"] = interval([run[kind] - base[kind] for run, base in pairs])
                at_equal_s = [at_equal_seconds(run, base, kind) for run, base in pairs]
                table[variant][f"{kind}_less_baseline_at_equal_s"] = interval(at_equal_s)
            table[variant]["step_over_baseline"] = interval([run["step_s"] / base["step_s"] for run, base in pairs])
    return table


def main() -> int:
    """Start the pods, or, in the coordinator pod, train every variant for every seed; returns the exit status.

    It fails if training teaches nothing, or if a strictly on-policy default learns less than the baseline, of all
    prompts or of the longest quarter.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(8)))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    variants = [BASELINE, *(one for one in given.variants if one != BASELINE)]
    if not in_coordinator():
        return run_in_coordinator("benchmarks.learning", sys.argv[1:], _spec(BASELINE, 0, given.steps))
    configure_logging()
    runs: list[Run] = []
    with ray_head() as settings:
        for index, seed in enumerate(given.seeds):
            shift = index % len(variants)  # so that no variant always comes first
            for variant in (*variants[shift:], *variants[:shift]):
                runs.append(train(settings, variant, seed, given.steps))
                print({name: value for name, value in runs[-1].items() if name != "points"}, file=sys.stderr)
    table = compared(runs, variants)
    ratios = {f"step_s/{variant}": [run["step_s"] for run in runs if run["variant"] == variant] for variant in variants}
    report("learning", ratios, {"seeds": given.seeds, "steps": given.steps}, runs, variants=table)
    teaches = all(table[variant]["gain"]["low"] > 0 for variant in variants)
    default = table.get("TailBatching", {})
    differences = [default[kind] for kind in ("reward_less_baseline", "long_less_baseline") if kind in default]
    return 0 if teaches and all(one["high"] >= 0 for one in differences) else 1


def _spec(variant: str, seed: int, steps: int) -> RLJobSpec:
    documents = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
    spec = next(document["spec"] for document in documents if document["kind"] == "RLJob")
    spec["algorithm"] |= {"seed": seed, "steps": steps}
    spec["data"]["heldOutPrompts"] = 128
    spec["evaluation"]["everySteps"] = max(1, steps // 6)
    spec["rollout"] = {"engine": spec["rollout"]["engine"], **VARIANTS[variant]}
    spec["storage"]["output"] = f"{variant.replace(', ', '-').replace(' ', '-')}-{seed}"
    spec["reward"]["pods"] = 0
    return RLJobSpec.model_validate(spec)


if __name__ == "__main__":
    raise SystemExit(main())
