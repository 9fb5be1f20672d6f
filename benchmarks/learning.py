"""Compare what variants of a job learn, and how fast, on the quickstart's task, paired by seed.

There are two tables: `learning` compares rollout strategies, `objectives` (--table) compares objectives and LoRA.

Every run starts from the same warm-started model of its seed, on real engines and trainers and without a cluster. The
held-out reward, of all prompts and of the quartile with the longest answers, is compared with that of the baseline, the
first variant of the table, by step, and by second up to the moment at which the quicker of the two has ended;
evaluations take no seconds. Long answers are the right ones for long prompts, so a variant that prefers short responses
shows. Every run makes the same number of steps: draws that wait after the last one are left. One seed gives figures
without intervals.

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
from benchmarks.paired import Interval, compared, step_ratios
from benchmarks.report import RESULTS, machine, report
from longshore.api.runtime_status import RuntimeActivity, RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore_runtime.elastic.job_watch import NoOperator
from longshore_runtime.process.logs import configure_logging
from longshore_runtime.session.session import Session
from longshore_runtime.settings import Settings

MANIFEST: Final = Path(__file__).parents[1] / "manifests/quickstart.yaml"
BATCH: Final = {"promptsPerStep": 48, "responsesPerPrompt": 4}
"""Batch of a step of the table `learning`, larger than in the quickstart, whose steps are to be quick."""
Sections = Mapping[str, Mapping[str, Any]]
"""Fields of sections of a job's spec."""


@dataclass(frozen=True)
class Table:
    """Variants of a job that are compared with the first one."""

    common: Sections
    """Fields that all variants share."""
    variants: Mapping[str, Sections]
    """Fields that each variant changes."""
    steps: int
    """Number of steps, unless the call gives another one."""


_STREAMED: Final = {"handover": "Streamed", "repurposing": {"trigger": "Never"}}
_PARTIAL: Final = {"strategy": "PartialRollout", "onPolicy": "Relaxed"}
_SINGLE: Final = {"promptsPerStep": 96, "responsesPerPrompt": 1}
"""Batch of a step with a critic, which needs no siblings: as many responses as 24 prompts have with four each."""
TABLES: Final[Mapping[str, Table]] = {
    "learning": Table(
        {"algorithm": BATCH},
        {
            "Synchronous": {"rollout": {"strategy": "Synchronous"}},
            "TailBatching": {},
            "TailBatching, both factors 1.25": {"rollout": {"tailBatching": {"responseFactor": 1.25}}},
            "TailBatching, one update": {"algorithm": {"longRoundUpdates": "One"}},
            "ReorderRollout": {"rollout": {"strategy": "ReorderRollout"}},
            "GroupPipeline": {"rollout": {"strategy": "GroupPipeline"}},
            "TailBatching, streamed": {"rollout": _STREAMED},
            "TailBatching, streamed, one update": {"algorithm": {"longRoundUpdates": "One"}, "rollout": _STREAMED},
            "Auto": {"rollout": {"strategy": "Auto"}},
            "PartialRollout": {"rollout": _PARTIAL},
        },
        60,
    ),
    "objectives": Table(
        {"workers": {"replicas": 1}},
        {
            "GRPO": {},
            "GRPO, LoRA": {"trainer": {"lora": {}}, "algorithm": {"learningRate": 5e-3}},  # Ten times that of GRPO.
            "CISPO": {"algorithm": {"objective": {"name": "CISPO"}}},
            "GSPO": {"algorithm": {"objective": {"name": "GSPO"}}},
            "PPO": {"algorithm": _SINGLE | {"objective": {"name": "PPO", "valueLearningRate": 1e-3}}},
            "TPPO": {
                "algorithm": _SINGLE | {"objective": {"name": "TPPO", "valueLearningRate": 1e-3}},
                "rollout": _PARTIAL,
            },
        },
        20,
    ),
}
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


def train(settings: Settings, table: str, variant: str, seed: int, steps: int) -> Run:
    """Make one whole run."""
    evaluations = Evaluations()
    spec = _spec(table, variant, seed, steps)
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
    parser.add_argument("--table", default="learning", choices=list(TABLES))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(8)))
    parser.add_argument("--variants", nargs="+", help="the baseline is added; default: all of the table")
    parser.add_argument("--steps", type=int, help="default: that of the table")
    parser.add_argument("--keep", action="store_true", help="keep stored runs of other variants and seeds")
    given = parser.parse_args()
    table = TABLES[given.table]
    steps = given.steps or table.steps
    if unknown := set(given.variants or ()) - set(table.variants):
        parser.error(f"--variants: {', '.join(sorted(unknown))} is no variant of table {given.table}")
    baseline, *others = table.variants
    variants = [baseline, *(one for one in others if given.variants is None or one in given.variants)]
    kept = stored_runs(RESULTS / f"{given.table}.json", steps) if given.keep else []
    runs: list[Run] = []
    if not in_coordinator():
        return run_in_coordinator("benchmarks.learning", sys.argv[1:], _spec(given.table, baseline, 0, steps))
    configure_logging()
    with ray_head() as settings:
        call = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
        for index, seed in enumerate(given.seeds):
            shift = index % len(variants)  # so that no variant always comes first
            for variant in (*variants[shift:], *variants[:shift]):
                found = train(settings, given.table, variant, seed, steps)
                runs.append({**found, "commit": machine()["commit"], "call": call})
                shown = {name: value for name, value in runs[-1].items() if name != "points"}
                print(f"run {len(runs)} of {len(given.seeds) * len(variants)}: {shown}", file=sys.stderr)
            _report(given.table, merged(kept, runs, list(table.variants)), steps)
    return 0 if _is_as_expected(compared(merged(kept, runs, list(table.variants)))) else 1


def stored_runs(result: Path, steps: int) -> list[Run]:
    """Return the runs of an earlier result, if any; raises SystemExit for runs of another length."""
    if not result.exists():
        return []
    stored = json.loads(result.read_text(encoding="utf-8"))
    if stored["settings"]["steps"] != steps:
        raise SystemExit(f"--keep: the runs of {result} have another number of steps")
    runs: list[Run] = stored["runs"]
    return runs


def merged(kept: Sequence[Run], runs: Sequence[Run], order: Sequence[str]) -> list[Run]:
    """Return the kept runs that are not made again, and the new ones, in the order of variants, then seeds.

    The baseline, `order[0]`, is kept call by call, because what ran beside it is compared with it.
    """

    def place(run: Run) -> tuple[int, int, str]:
        return order.index(run["variant"]), run["seed"], run["call"] if run["variant"] == order[0] else ""

    found = {place(run): run for run in (*kept, *runs)}
    calls = {run["call"] for run in found.values() if run["variant"] != order[0]} | {run["call"] for run in runs}
    return [run for _, run in sorted(found.items(), key=lambda one: one[0]) if run["call"] in calls]


def _report(table: str, runs: Sequence[Run], steps: int) -> None:
    seeds = sorted({run["seed"] for run in runs})
    report(table, step_ratios(runs), {"seeds": seeds, "steps": steps}, runs, variants=compared(runs))


def _is_as_expected(table: Mapping[str, Any]) -> bool:
    """Return whether the result is as expected, as far as intervals tell; without any, nothing speaks against it."""
    kinds = ("reward_less_baseline", "long_less_baseline")
    differences: list[Interval] = [
        table[variant][kind] for variant in STRICT_DEFAULTS for kind in kinds if kind in table.get(variant, {})
    ]
    teaches = all(of["gain"].get("low", of["gain"]["mean"]) > 0 for of in table.values())
    return teaches and all(one.get("high", 0.0) >= 0 for one in differences)


def _spec(table: str, variant: str, seed: int, steps: int) -> RLJobSpec:
    documents = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
    spec = next(document["spec"] for document in documents if document["kind"] == "RLJob")
    spec["rollout"] = {"engine": spec["rollout"]["engine"], "onFinish": "Leave", "strategy": "TailBatching"}
    spec["data"]["heldOutPrompts"] = 128
    spec["algorithm"] |= {"seed": seed, "steps": steps}
    spec["evaluation"]["everySteps"] = 10
    spec["storage"]["output"] = f"{variant.replace(', ', '-').replace(' ', '-')}-{seed}"
    spec["reward"]["pods"] = 0
    for changed in (TABLES[table].common, TABLES[table].variants[variant]):
        for section, fields in changed.items():
            spec[section] |= fields
    return RLJobSpec.model_validate(spec)


if __name__ == "__main__":
    raise SystemExit(main())
