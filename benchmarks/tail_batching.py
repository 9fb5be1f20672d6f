"""Compare synchronous rounds with tail batching: same model, same draws, same real engines, alternating in one run.

One alternation is a full period of each: as many rounds as tail batching needs to train every draw that it started
(four short rounds and a long one at eta = 1.25), and as many synchronous ones. Both begin with the same weights and the
same position in the data, and train equally many samples.

Figures are ratios of whole periods, tail batching over synchronous. On a CPU the time of a decode step grows with the
number of running responses, which a GPU hides up to large batches: there, expect the rollout time to follow the ratio
of decode steps rather than that of the seconds measured here.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.local_pods import run_pods
from benchmarks.period import alternate, period, running
from benchmarks.report import report
from benchmarks.workload import Workload
from longshore_runtime.step.parts import Parts

ROUNDS_PER_PERIOD = 5

FIGURES = (
    "rollout_s_per_trained_sample",
    "decode_steps_per_trained_sample",
    "step_s",
    "tokens_trained_per_s",
    "bubble_share",
)


def measure(num_alternations: int, workload: Workload) -> None:
    """Run the alternations and report, in the coordinator pod."""
    with running(workload) as parts:
        _warm_up(workload, parts)
        runs = [alternate(workload, parts, ROUNDS_PER_PERIOD) for _ in range(num_alternations)]
    baseline, ours = ([run[name] for run in runs] for name in ("Synchronous", "TailBatching"))
    ratios = {key: [mine[key] / other[key] for mine, other in zip(ours, baseline, strict=True)] for key in FIGURES}
    settings = {"alternations": num_alternations, "workload": f"benchmarks/{workload.path.name}"}
    report(workload.path.stem, ratios, settings, [*baseline, *ours])


def _warm_up(workload: Workload, parts: Parts) -> None:
    """Run a period of each job; with a large model a round suffices, which takes minutes less."""
    if workload.model is None:
        alternate(workload, parts, ROUNDS_PER_PERIOD)
    else:
        period(workload.jobs["Synchronous"], parts, workload.lengths, num_rounds=1)


def main() -> int:
    """Start the pods, or, in the coordinator pod, measure; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alternations", type=int, default=7)
    parser.add_argument("--gpu", action="store_true", help="a model of 0.6B parameters on this machine's first GPU")
    workload = Workload(Path(__file__).with_name(f"tail_batching{'_gpu' if '--gpu' in sys.argv else ''}.yaml"))
    return run_pods("tail_batching", parser, lambda given: measure(given.alternations, workload), workload.spec)


if __name__ == "__main__":
    raise SystemExit(main())
