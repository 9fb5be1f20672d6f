"""Compare what rollout strategies learn, and how fast, on the quickstart's task, paired by seed.

Every run starts from the same warm-started model of its seed, on real engines and trainers and without a cluster. The
held-out reward, of all prompts and of the quartile with the longest answers, is compared with that of `Synchronous` by
step, and by second up to the moment at which the quicker of the two has ended; evaluations take no seconds. Long
answers are the right ones for long prompts, so a strategy that prefers short responses shows. Every run makes the same
number of steps: draws that wait after the last one are left. One seed gives figures without intervals.

The results are written after every seed, so a run that is stopped keeps those that are done. With --keep, the stored
runs of other variants and seeds stay, and those of this call take the places of their predecessors. Learning by step
does not depend on the machine. Seconds do, so they are compared between runs of one call alone.
"""

import argparse
import json
import queue
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml
from prometheus_client import CollectorRegistry

from benchmarks.local_pods import in_coordinator, ray_head, run_in_coordinator
from benchmarks.paired import BASELINE, Interval, compared, step_ratios
from benchmarks.report import RESULTS, machine, report
from longshore.api.runtime_status import RuntimeActivity, RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore_runtime.elastic.job_watch import NoOperator
from longshore_runtime.process.logs import configure_logging
from longshore_runtime.session.session import Session
from longshore_runtime.settings import Settings

MANIFEST: Final = Path(__file__).parents[1] / "manifests/quickstart.yaml"
BATCH: Final = {"promptsPerStep": 48, "responsesPerPrompt": 4}
"""Batch of a step, larger than in the quickstart, whose steps are to be quick."""
VARIANTS: Final[Mapping[str, dict[str, Any]]] = {
    BASELINE: {"strategy": "Synchronous"},
    "TailBatching": {"strategy": "TailBatching"},
    "TailBatching, both factors 1.25": {"strategy": "TailBatching", "tailBatching": {"responseFactor": 1.25}},
    "TailBatching, one update": {"strategy": "TailBatching"},
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
ALGORITHMS: Final[Mapping[str, dict[str, Any]]] = {
    "TailBatching, one update": {"longRoundUpdates": "One"},
}
"""Algorithm settings of variants that change more than the rollout."""
STRICT_DEFAULTS: Final = ("TailBatching", "ReorderRollout", "GroupPipeline", "TailBatching, streamed", "Auto")
"""Variants of which none may learn less per step than the baseline, beyond the interval."""

Run = dict[str, Any]


@dataclass
class Evaluations:
    """Status sink that keeps what every evaluation found, with the seconds of training before it."""

    points: list[dict[str, float]] = field(default_factory=list)
    _now_s: Callable[[], float] = time.monotonic
    _evaluating_since_s: float | None = None
    _trained_since_s: float = 0.0
    _trained_s: float = 0.0

    def report(self, status: RuntimeStatus) -> None:
        """Note an evaluation when the activity changes after it: its reward may equal that of the one before."""
        if status.activity is RuntimeActivity.EVALUATE:
            if self._evaluating_since_s is None:
                self._evaluating_since_s = self._now_s()
        elif self._evaluating_since_s is not None:
            self._evaluated(status, self._evaluating_since_s)
            self._evaluating_since_s, self._trained_since_s = None, self._now_s()

    def _evaluated(self, status: RuntimeStatus, since_s: float) -> None:
        found = status.held_out
        reward, long = (found.before, found.long_before) if found.latest is None else (found.latest, found.long_latest)
        assert reward is not None and long is not None, "an evaluation has a reward"
        if self.points:  # Whatever comes before the first evaluation is the start of the run.
            self._trained_s += since_s - self._trained_since_s
        self.points.append({"step": status.step, "seconds": self._trained_s, "reward": reward, "long": long})

    def close(self) -> None:
        """Do nothing: no report waits."""


def train(settings: Settings, variant: str, seed: int, steps: int) -> Run:
    """Make one whole run."""
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


def main() -> int:
    """Start the pods, or, in the coordinator pod, train every variant for every seed; returns the exit status.

    It fails if training teaches nothing, or if a strictly on-policy default learns less than the baseline, of all
    prompts or of the longest quarter.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(8)))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--keep", action="store_true", help="keep stored runs of other variants and seeds")
    given = parser.parse_args()
    variants = [BASELINE, *(one for one in given.variants if one != BASELINE)]
    kept = stored_runs(RESULTS / "learning.json", given.steps) if given.keep else []
    runs: list[Run] = []
    if not in_coordinator():
        return run_in_coordinator("benchmarks.learning", sys.argv[1:], _spec(BASELINE, 0, given.steps))
    configure_logging()
    with ray_head() as settings:
        call = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
        for index, seed in enumerate(given.seeds):
            shift = index % len(variants)  # so that no variant always comes first
            for variant in (*variants[shift:], *variants[:shift]):
                found = train(settings, variant, seed, given.steps)
                runs.append({**found, "commit": machine()["commit"], "call": call})
                shown = {name: value for name, value in runs[-1].items() if name != "points"}
                print(f"run {len(runs)} of {len(given.seeds) * len(variants)}: {shown}", file=sys.stderr)
            _report(merged(kept, runs), given.steps)
    return 0 if _is_as_expected(compared(merged(kept, runs))) else 1


def stored_runs(result: Path, steps: int) -> list[Run]:
    """Return the runs of an earlier result, if any; raises SystemExit for runs of another length."""
    if not result.exists():
        return []
    stored = json.loads(result.read_text(encoding="utf-8"))
    if stored["settings"]["steps"] != steps:
        raise SystemExit(f"--keep: the runs of {result} have another number of steps")
    runs: list[Run] = stored["runs"]
    return runs


def merged(kept: Sequence[Run], runs: Sequence[Run]) -> list[Run]:
    """Return the kept runs that are not made again, and the new ones, in the order of variants, then seeds.

    The baseline is kept call by call, because what ran beside it is compared with it.
    """
    order = list(VARIANTS)

    def place(run: Run) -> tuple[int, int, str]:
        return order.index(run["variant"]), run["seed"], run["call"] if run["variant"] == BASELINE else ""

    found = {place(run): run for run in (*kept, *runs)}
    calls = {run["call"] for run in found.values() if run["variant"] != BASELINE} | {run["call"] for run in runs}
    return [run for _, run in sorted(found.items(), key=lambda one: one[0]) if run["call"] in calls]


def _report(runs: Sequence[Run], steps: int) -> None:
    seeds = sorted({run["seed"] for run in runs})
    report("learning", step_ratios(runs), {"seeds": seeds, "steps": steps}, runs, variants=compared(runs))


def _is_as_expected(table: Mapping[str, Any]) -> bool:
    """Return whether the result is as expected, as far as intervals tell; without any, nothing speaks against it."""
    kinds = ("reward_less_baseline", "long_less_baseline")
    differences: list[Interval] = [
        table[variant][kind] for variant in STRICT_DEFAULTS for kind in kinds if kind in table.get(variant, {})
    ]
    teaches = all(of["gain"].get("low", of["gain"]["mean"]) > 0 for of in table.values())
    return teaches and all(one.get("high", 0.0) >= 0 for one in differences)


def _spec(variant: str, seed: int, steps: int) -> RLJobSpec:
    documents = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
    spec = next(document["spec"] for document in documents if document["kind"] == "RLJob")
    spec["algorithm"] |= BATCH | {"seed": seed, "steps": steps} | ALGORITHMS.get(variant, {})
    spec["data"]["heldOutPrompts"] = 128
    spec["evaluation"]["everySteps"] = max(1, steps // 6)
    spec["rollout"] = {"engine": spec["rollout"]["engine"], "onFinish": "Leave", **VARIANTS[variant]}
    spec["storage"]["output"] = f"{variant.replace(', ', '-').replace(' ', '-')}-{seed}"
    spec["reward"]["pods"] = 0
    return RLJobSpec.model_validate(spec)


if __name__ == "__main__":
    raise SystemExit(main())
