"""Compare all strategies on the same real engines: same model, same draws, alternating, next to the simulator.

One alternation is a period of every job of `strategies.yaml`: as many rounds each, from the same weights and the same
position in the data. The last rounds of a period train whatever waits, so that every job trains the same draws, and
equally many samples. `GroupPipeline` makes several updates per step while its rounds run; its serial baseline is
`Synchronous4`, with the same updates after the round.

`ratios` are whole periods over those of the baseline. `figures` hold for this machine. `predictions` set the median of
a figure alongside what the simulator says from a profile of this machine, which is measured in every alternation (what
decoding, training and publishing cost) and knows nothing of rounds. Where two cores are engines and trainers at once, a
pipeline overlaps nothing; the simulator gives its trainers processors of their own.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.local_pods import run_pods
from benchmarks.machine_profile import profiler
from benchmarks.period import Run, alternate, running
from benchmarks.prediction import WorkloadLengths, predict
from benchmarks.report import ratios_to, report, spreads
from benchmarks.workload import Workload

WORKLOAD: Final = Workload(Path(__file__).with_suffix(".yaml"))
BASELINES: Final = {
    "TailBatching": "Synchronous",
    "PartialRollout": "Synchronous",
    "ReorderRollout": "Synchronous",
    "GroupPipeline": "Synchronous4",
}
FIGURES: Final = (
    "rollout_s_per_trained_sample",
    "decode_steps_per_trained_sample",
    "step_s",
    "bubble_share",
    "off_policy_token_share",
    "trainer_waiting_ratio",
    "first_dispatch_s",
)

Runs = Mapping[str, Sequence[Run]]


def measure(num_alternations: int, num_rounds: int) -> None:
    """Run the alternations and report, in the coordinator pod."""
    with running(WORKLOAD) as parts:
        alternate(WORKLOAD, parts, num_rounds)  # Warms up.
        machine = profiler(parts, WORKLOAD)
        runs: dict[str, list[Run]] = {name: [] for name in WORKLOAD.jobs}
        for number in range(num_alternations):
            machine.measure()
            for name, run in alternate(WORKLOAD, parts, num_rounds).items():
                runs[name].append({"alternation": number, **run})
        lengths = WorkloadLengths(WORKLOAD.lengths, [len(row.prompt_tokens) for row in parts.prompts.train])
    profile = machine.profile()
    predictions = {
        name: predict(spec, lengths, profile, num_rounds, num_prompts=len(lengths.num_prompt_tokens))
        for name, spec in WORKLOAD.jobs.items()
    }
    report(
        "strategies",
        ratios_to(BASELINES, runs, FIGURES),
        {"alternations": num_alternations, "rounds": num_rounds, "workload": f"benchmarks/{WORKLOAD.path.name}"},
        [run for of in runs.values() for run in of],
        figures=spreads({f"{name}/{key}": [run[key] for run in of] for name, of in runs.items() for key in FIGURES}),
        predictions=compared(runs, predictions),
        profile=profile.model_dump(by_alias=True, exclude_none=True),
    )


def compared(runs: Runs, predictions: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return measured median, prediction and relative error (none where the measured value is 0)."""
    table = {}
    for name, predicted in predictions.items():
        for key in FIGURES:
            measured = median(run[key] for run in runs[name])
            error = round(predicted[key] / measured - 1, 3) if measured else None
            table[f"{name}/{key}"] = {
                "measured": round(measured, 4),
                "predicted": round(predicted[key], 4),
                "error": error,
            }
    return table


def main() -> int:
    """Start the pods, or, in the coordinator pod, measure; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5, help="per period")
    return run_pods("strategies", parser, lambda given: measure(given.alternations, given.rounds), WORKLOAD.spec)


if __name__ == "__main__":
    raise SystemExit(main())
