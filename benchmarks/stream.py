"""Gradients while the round runs against gradients after it: two worker pods with a core each, as with a GPU each.

Every worker pod is a local process pinned to a core of its own, which its engine and its trainer replica share; the
coordinator uses both. The jobs of `stream.yaml` are all tail batching: `AfterRound`, and `Streamed` with every trigger
of repurposing. An alternation is a period of five rounds of each (four short, one long), from the same weights and the
same place in the data; each alternation begins with another job.

What pods are asked to do is the operator's own decision, called in the coordinator; `repurpose` measures the way
through the API server. `ratios` are over `AfterRound` in the same alternation. `simulated` holds what the simulator
says of the paper's cluster (RollPacker, Tables 3 and 4), and what the paper printed.
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from benchmarks.local_pods import in_coordinator, lacks_for_pinning, run_in_coordinator
from benchmarks.overlap import Alternations, raw
from benchmarks.papers import simulated
from benchmarks.period import Run, Step, running
from benchmarks.report import report, spreads
from benchmarks.workload import Workload
from longshore.api.round_status import RoundKind
from longshore.sim.paper.published import Paper

WORKLOAD: Final = Workload(Path(__file__).with_suffix(".yaml"))
BASELINE: Final = "AfterRound"
ROUNDS_PER_PERIOD: Final = 5
TIMES: Final = ("step_s", "rollout_s", "train_s", "first_gradient_s")
HAND_OVER: Final = ("control_path_s", "hand_over_s", "num_moved")

Runs = Mapping[str, Sequence[Run]]


def measure(num_alternations: int, limit_s: float, *, with_papers: bool) -> None:
    """In the coordinator pod: run the alternations and report."""
    with running(WORKLOAD) as parts:
        alternations = Alternations(WORKLOAD.jobs, parts, WORKLOAD.lengths, ROUNDS_PER_PERIOD)
        runs = alternations.run(num_alternations, totals, limit_s)
    report(
        "stream",
        ratios(runs),
        {"alternations": len(runs[BASELINE]), "workload": f"benchmarks/{WORKLOAD.path.name}", "cores_per_pod": 1},
        raw(runs),
        figures=figures(runs),
        timelines={name: timeline(of) for name, of in runs.items()},
        simulated=simulated(Paper.ROLLPACKER, "table3/", "table4/") if with_papers else {},
    )


def totals(steps: Sequence[Step]) -> dict[str, float]:
    """Means over the steps of a period, over its long round, and over what was handed over."""
    long = [step for step in steps if step["kind"] == RoundKind.LONG.value]
    moved = [step for step in steps if "control_path_s" in step]
    return {
        **_means(steps, ""),
        **_means(long, "long_"),
        "repurposed_rounds": len(moved),
        **{name: fmean(step[name] for step in moved) for name in HAND_OVER if moved},
    }


def _means(steps: Sequence[Step], prefix: str) -> dict[str, float]:
    tokens = sum(step["tokens"] for step in steps)
    return {
        **{prefix + name: fmean(step[name] for step in steps) for name in TIMES},
        f"{prefix}overlap_share": sum(step["overlap_share"] * step["tokens"] for step in steps) / tokens,
    }


def ratios(runs: Runs) -> dict[str, list[float]]:
    """Of times, by job."""
    return {
        f"{name}/{prefix}{figure}": [
            run[prefix + figure] / base[prefix + figure] for run, base in zip(of, runs[BASELINE], strict=True)
        ]
        for name, of in runs.items()
        if name != BASELINE
        for prefix in ("", "long_")
        for figure in TIMES
    }


def figures(runs: Runs) -> dict[str, dict[str, float]]:
    """Of every job that has them."""
    columns = {
        f"{name}/{key}": [run[key] for run in of if key in run]
        for name, of in runs.items()
        for key in dict.fromkeys(key for run in of for key, value in run.items() if isinstance(value, float | int))
        if key != "alternation"
    }
    return spreads(columns)


def timeline(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What happened in the long round of the first alternation."""
    long = next(step for step in runs[0]["steps"] if step["kind"] == RoundKind.LONG.value)
    return [{"s": round(moment_s, 3), "event": event} for moment_s, event in long["events"]]


def main() -> int:
    """Start the pods, or, in the coordinator pod, measure; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--limit-s", type=float, default=math.inf, help="then no further alternation begins")
    parser.add_argument("--without-papers", action="store_true", help="do not simulate: saves minutes")
    arguments = parser.parse_args()
    if in_coordinator():
        measure(arguments.alternations, arguments.limit_s, with_papers=not arguments.without_papers)
        return 0
    if lacks := lacks_for_pinning(WORKLOAD.spec):
        print(f"stream: {lacks}", file=sys.stderr)
        return 2
    return run_in_coordinator("benchmarks.stream", sys.argv[1:], WORKLOAD.spec, pinned=True)


if __name__ == "__main__":
    raise SystemExit(main())
