"""Does the quickstart learn? Its manifest, run for several seeds on real engines and trainers, without a cluster.

Reports held-out reward before and after, overall and on the quartile of prompts with the longest answers, and the 95 %
interval of the mean gain over the seeds (Student's t).
"""

import argparse
import queue
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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

MANIFEST = Path(__file__).parents[1] / "manifests/quickstart.yaml"
T_975 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""Quantile of Student's t for the 95 % interval, by number of seeds."""

Run = dict[str, Any]


class Latest:
    """Keeps the newest status."""

    def __init__(self) -> None:
        self.status = RuntimeStatus()

    def report(self, status: RuntimeStatus) -> None:
        """Remember."""
        self.status = status

    def close(self) -> None:
        """Nothing waits."""


def train(settings: Settings, seed: int) -> Run:
    """One whole run of the quickstart."""
    sink = Latest()
    with Session(
        settings, _spec(seed), CollectorRegistry(), sink, RuntimeStatus(), queue.SimpleQueue(), NoOperator()
    ) as session:
        session.run(session.build())
    held_out = sink.status.held_out
    assert held_out.before is not None and held_out.latest is not None
    assert held_out.long_before is not None and held_out.long_latest is not None
    return {
        "seed": seed,
        "before": held_out.before,
        "after": held_out.latest,
        "gain": held_out.latest - held_out.before,
        "long_before": held_out.long_before,
        "long_after": held_out.long_latest,
        "long_gain": held_out.long_latest - held_out.long_before,
    }


def interval(values: Sequence[float]) -> list[float]:
    """95 % interval of the mean."""
    half = T_975[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return [round(statistics.mean(values) - half, 3), round(statistics.mean(values) + half, 3)]


def main() -> int:
    """Start the pods, or, in the coordinator pod, train for every seed; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    seeds = parser.parse_args().seeds
    if not in_coordinator():
        return run_in_coordinator("benchmarks.learning", sys.argv[1:], _spec(0))
    configure_logging()
    with ray_head() as settings:
        runs = [train(settings, seed) for seed in seeds]
    intervals = {kind: interval([run[kind] for run in runs]) for kind in ("gain", "long_gain")}
    figures = {kind: [run[kind] for run in runs] for kind in ("gain", "long_gain")}
    report(
        "learning", figures, {"seeds": seeds, "interval_95": intervals, "manifest": "manifests/quickstart.yaml"}, runs
    )
    return 0 if all(low > 0 for low, _ in intervals.values()) else 1


def _spec(seed: int) -> RLJobSpec:
    documents = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
    spec = next(document["spec"] for document in documents if document["kind"] == "RLJob")
    spec["algorithm"]["seed"] = seed
    spec["storage"]["output"] = f"seed-{seed}"
    spec["reward"]["pods"] = 0
    return RLJobSpec.model_validate(spec)


if __name__ == "__main__":
    raise SystemExit(main())
