"""Compare how a model whose output layer is its embedding learns with one whose output layer is its own.

Two tiny models from the same seed and the same demonstrations are trained as in the quickstart, one after the other, on
real engines and trainers, without a cluster. Of every step: the mean reward, and the mean and the largest difference
between the log-probabilities of engine and trainer, which are rounding as long as engines compute with the published
weights.
"""

import argparse
import json
import queue
import sys
from pathlib import Path
from typing import Any, Final

import yaml
from prometheus_client import CollectorRegistry

from benchmarks.learning import BATCH, MANIFEST, Evaluations
from benchmarks.local_pods import in_coordinator, ray_head, run_in_coordinator
from benchmarks.report import report
from benchmarks.warm_model import write_warm_model
from longshore.api.model import BuiltinTask
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore_runtime.elastic.job_watch import NoOperator
from longshore_runtime.process.logs import configure_logging
from longshore_runtime.session.session import Session
from longshore_runtime.settings import Settings

KINDS: Final = ("untied", "tied")
MISMATCH_LIMIT: Final = 1e-5
"""Limit of the mean mismatch over the tokens of a step, in fp32."""
COLUMNS: Final = {
    "reward": "critic/rewards/mean",
    "mismatch_mean": "rollout_corr/log_prob_mismatch_mean",
    "mismatch_max": "rollout_corr/log_prob_mismatch_max",
}

Run = dict[str, Any]


def train(settings: Settings, kind: str, seed: int, num_steps: int) -> Run:
    """Warm-start a model and train it."""
    spec = spec_of(kind, seed, num_steps)
    assert spec.model.path is not None
    model = settings.storage / spec.model.path
    model.mkdir(parents=True)
    num_warm_steps = quickstart()["algorithm"]["warmStart"]["steps"]
    write_warm_model(model, BuiltinTask.COUNTING, num_warm_steps, seed, tied=kind == "tied")
    evaluations = Evaluations()
    with Session(
        settings, spec, CollectorRegistry(), evaluations, RuntimeStatus(), queue.SimpleQueue(), NoOperator()
    ) as session:
        session.run(session.build())
    steps = read_steps(settings.storage / spec.storage.output / "metrics.jsonl")
    return {
        "kind": kind,
        "seed": seed,
        "held_out_before": evaluations.points[0]["reward"],
        "held_out_after": evaluations.points[-1]["reward"],
        **{column: [step[name] for step in steps] for column, name in COLUMNS.items()},
    }


def read_steps(journal: Path) -> list[dict[str, float]]:
    """Return the metrics of every step that was trained."""
    lines = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line.keys() >= set(COLUMNS.values())]


def quickstart() -> dict[str, Any]:
    """Return the specification of the quickstart's job."""
    documents = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
    spec: dict[str, Any] = next(document["spec"] for document in documents if document["kind"] == "RLJob")
    return spec


def spec_of(kind: str, seed: int, num_steps: int) -> RLJobSpec:
    """Return the quickstart's job on a model of this kind, with the batches of the learning benchmark."""
    spec = quickstart()
    spec["model"] = {"path": f"models/{kind}-{seed}", "maxContextTokens": spec["model"]["maxContextTokens"]}
    spec["algorithm"] |= BATCH | {"seed": seed, "steps": num_steps}
    spec["storage"]["output"] = f"{kind}-{seed}"
    spec["reward"]["pods"] = 0
    spec["workers"]["replicas"] = 1
    return RLJobSpec.model_validate(spec)


def main() -> int:
    """Start the pods, or, in the coordinator pod, train both; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    arguments = parser.parse_args()
    if not in_coordinator():
        return run_in_coordinator("benchmarks.tied_embeddings", sys.argv[1:], spec_of("untied", 0, arguments.steps))
    configure_logging()
    with ray_head() as settings:
        runs = [train(settings, kind, seed, arguments.steps) for seed in arguments.seeds for kind in arguments.kinds]
    gains = {
        f"gain/{kind}": [run["held_out_after"] - run["held_out_before"] for run in runs if run["kind"] == kind]
        for kind in arguments.kinds
    }
    mismatch = {
        column: {kind: max(max(run[column]) for run in runs if run["kind"] == kind) for kind in arguments.kinds}
        for column in ("mismatch_mean", "mismatch_max")
    }
    settings_of_runs = {"seeds": arguments.seeds, "steps": arguments.steps, "manifest": "manifests/quickstart.yaml"}
    report("tied_embeddings", gains, settings_of_runs, runs, **mismatch)
    learned = all(gain > 0 for values in gains.values() for gain in values)
    return 0 if learned and max(mismatch["mismatch_mean"].values()) < MISMATCH_LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
