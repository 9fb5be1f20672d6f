"""Compare gradients during the round with gradients after it: two worker pods with a core each, as with a GPU each.

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
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from benchmarks.local_pods import run_pods
from benchmarks.overlap import Alternations, raw
from benchmarks.papers import simulated
from benchmarks.period import Run, Step, running
from benchmarks.report import others, ratios_to, report, spreads
from benchmarks.workload import Workload
from longshore.api.round_status import RoundKind
from longshore.sim.paper.published import Paper

WORKLOAD: Final = Workload(Path(__file__).with_suffix(".yaml"))
BASELINE: Final = "AfterRound"
ROUNDS_PER_PERIOD: Final = 5
TIMES: Final = ("step_s", "rollout_s", "train_s", "first_gradient_s")
REPURPOSING: Final = ("control_path_s", "apply_s", "num_moved")

Runs = Mapping[str, Sequence[Run]]


def measure(num_alternations: int, limit_s: float, *, with_papers: bool) -> None:
    """Run the alternations and report, in the coordinator pod."""
    with running(WORKLOAD) as parts:
        alternations = Alternations(WORKLOAD.jobs, parts, WORKLOAD.lengths, ROUNDS_PER_PERIOD)
        runs = alternations.run(num_alternations, totals, limit_s)
    report(
        "stream",
        ratios_to(others(runs, BASELINE), runs, [prefix + name for prefix in ("", "long_") for name in TIMES]),
        {"alternations": len(runs[BASELINE]), "workload": f"benchmarks/{WORKLOAD.path.name}", "cores_per_pod": 1},
        raw(runs),
        figures=figures(runs),
        timelines={name: timeline(of) for name, of in runs.items()},
        simulated=simulated(Paper.ROLLPACKER, "table3/", "table4/") if with_papers else {},
    )


def totals(steps: Sequence[Step]) -> dict[str, float]:
    """Return means over the steps of a period, over its long round, and over the repurposed rounds."""
    long = [step for step in steps if step["kind"] == RoundKind.LONG.value]
    moved = [step for step in steps if "control_path_s" in step]
    return {
        **_means(steps, ""),
        **_means(long, "long_"),
        "repurposed_rounds": len(moved),
        **{name: fmean(step[name] for step in moved) for name in REPURPOSING if moved},
    }


def _means(steps: Sequence[Step], prefix: str) -> dict[str, float]:
    tokens = sum(step["tokens"] for step in steps)
    return {
        **{prefix + name: fmean(step[name] for step in steps) for name in TIMES},
        f"{prefix}overlap_share": sum(step["overlap_share"] * step["tokens"] for step in steps) / tokens,
    }


def figures(runs: Runs) -> dict[str, dict[str, float]]:
    """Return the spread of every figure of every job that has it."""
    columns = {
        f"{name}/{key}": [run[key] for run in of if key in run]
        for name, of in runs.items()
        for key in dict.fromkeys(key for run in of for key, value in run.items() if isinstance(value, float | int))
        if key != "alternation"
    }
    return spreads(columns)


def timeline(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return what happened in the long round of the first alternation."""
    long = next(step for step in runs[0]["steps"] if step["kind"] == RoundKind.LONG.value)
    return [{"s": round(moment_s, 3), "event": event} for moment_s, event in long["events"]]


def main() -> int:
    """Start the pods, or, in the coordinator pod, measure; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--limit-s", type=float, default=math.inf, help="then no further alternation begins")
    parser.add_argument("--without-papers", action="store_true", help="do not simulate: saves minutes")
    return run_pods(
        "stream",
        parser,
        lambda given: measure(given.alternations, given.limit_s, with_papers=not given.without_papers),
        WORKLOAD.spec,
        pinned=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
