"""Compare RolloutPipe's systems: one pod samples and one trains, with a core each, as with GPUs of their own.

`Serial` makes the updates of a step after the round. `CGP` (complete-group pipelining) hands every U complete groups
to the trainer while the round runs, all groups being in service at once. `CGP+FGD` (frontier-group dispatch) keeps only
the groups of the frontier in service: those of one update, as the paper's equation says; `CGP+FGD8` four times as
many. All make as many optimizer steps, from as many groups each.

An alternation is a period of rounds of each, from the same weights and the same place in the data; each alternation
begins with another job. `ratios` are over `Serial` in the same alternation. `simulated` holds what the simulator says
of the paper's cluster, and what the paper printed.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

from benchmarks.local_pods import run_pods
from benchmarks.overlap import Alternations, raw
from benchmarks.papers import simulated
from benchmarks.period import Run, Step, running
from benchmarks.report import others, ratios_to, report, spreads
from benchmarks.workload import Workload
from longshore.sim.paper.published import Paper

WORKLOAD: Final = Workload(Path(__file__).with_suffix(".yaml"))
BASELINE: Final = "Serial"
FIGURES: Final = (
    "step_s",
    "rollout_s",
    "train_s",
    "rollout_to_train_end_s",
    "trainer_compute_s",
    "trainer_waiting_ratio",
    "first_dispatch_s",
    "overlap_share",
    "decode_steps",
)

Runs = Mapping[str, Sequence[Run]]


def measure(num_alternations: int, num_rounds: int, limit_s: float, *, with_papers: bool) -> None:
    """Run the alternations and report, in the coordinator pod."""
    with running(WORKLOAD) as parts:
        alternations = Alternations(WORKLOAD.jobs, parts, WORKLOAD.lengths, num_rounds)
        runs = alternations.run(num_alternations, totals, limit_s)
    columns = {f"{name}/{key}": [run[key] for run in of] for name, of in runs.items() for key in FIGURES}
    report(
        "pipeline",
        ratios_to(others(runs, BASELINE), runs, FIGURES),
        {"alternations": len(runs[BASELINE]), "rounds": num_rounds, "workload": f"benchmarks/{WORKLOAD.path.name}",
         "cores_per_pod": 1},
        raw(runs),
        figures=spreads(columns),
        dispatch_s={name: of[0]["steps"][0]["dispatch_s"] for name, of in runs.items()},
        simulated=simulated(Paper.ROLLOUTPIPE, "5.2/", "5.3/", "abstract/") if with_papers else {},
    )  # fmt: skip


def totals(steps: Sequence[Step]) -> dict[str, float]:
    """Return means over the steps of a period; the waiting ratio is that of RolloutPipe, section 5.1."""
    measured: dict[str, float] = {name: fmean(step[name] for step in steps) for name in FIGURES if name in steps[0]}
    end_s, compute_s = measured["step_s"] - fmean(step["publish_s"] for step in steps), measured["trainer_compute_s"]
    return {**measured, "rollout_to_train_end_s": end_s, "trainer_waiting_ratio": 1.0 - compute_s / end_s}


def main() -> int:
    """Start the pods, or, in the coordinator pod, measure; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3, help="per period")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="then no further alternation begins")
    parser.add_argument("--without-papers", action="store_true", help="do not simulate: saves minutes")
    return run_pods(
        "pipeline",
        parser,
        lambda given: measure(given.alternations, given.rounds, given.limit_s, with_papers=not given.without_papers),
        WORKLOAD.spec,
        pinned=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
