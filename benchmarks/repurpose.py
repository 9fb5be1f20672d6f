"""Measure how long pods take from sampling to training, through the API server.

The jobs run on an embedded cluster with the operator, installed from the chart by `longshore up`, as a user's do.

`control_path_s` runs from the coordinator's telemetry over the operator's assignment to its acknowledgement;
`apply_s` is the part of it in which requests move and trainer replicas wake; `decision_s` is the rest: two writes,
two watches and the decision. Figures come from the metrics of the jobs, fetched from their storage. A job with a
deterministic engine and trainer gives the many rounds that a 99th percentile takes, since the way through the API
server is the same; a shorter one runs vLLM and torch.

Everything runs on this machine: API server, operator and the pods of the job.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.report import report
from benchmarks.workload import merged
from longshore.api import names
from longshore.api.rljob import RLJob

WORKLOAD: Final = Path(__file__).with_suffix(".yaml")
GOAL_S: Final = 1.0
"""Goal for the 99th percentile of the control path, in seconds."""
METRICS: Final = {
    "control_path_s": "repurpose/control_path_s",
    "apply_s": "repurpose/apply_s",
    "num_moved": "repurpose/num_moved",
    "first_gradient_s": "trainer/first_gradient_s",
    "rollout_s": "timing_s/gen",
}
LIMIT_S: Final = 1800.0
"""Seconds for one command; a job of the workload takes minutes."""

Round = dict[str, float]


class CommandFailed(Exception):
    """Raised when a command fails, with what it said last."""


@dataclass(frozen=True)
class CommandLine:
    """`longshore`, with a state directory of its own."""

    home: Path

    def __call__(self, *arguments: str) -> None:
        """Run a command; raises CommandFailed."""
        environment = {**os.environ, "LONGSHORE_HOME": str(self.home), "NO_COLOR": "1"}
        environment.pop("KUBECONFIG", None)
        command = [sys.executable, "-m", "longshore_cli", *arguments]
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S
        )
        if done.returncode != 0:
            raise CommandFailed(" ".join(done.stdout.split())[-500:])


@contextmanager
def cluster() -> Iterator[CommandLine]:
    """Yield the command line of an embedded cluster with the operator; nothing of it is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="ls-") as home:
        longshore = CommandLine(Path(home))
        try:
            longshore("up")
            yield longshore
        finally:
            longshore("down", "--delete-data")


def measure(longshore: CommandLine, name: str, manifest: Mapping[str, Any]) -> list[Round]:
    """Run a job to its end; return what its metrics say of every round."""
    file, fetched = longshore.home / f"{name}.yaml", longshore.home / name
    file.write_text(yaml.safe_dump(dict(manifest)), encoding="utf-8")
    longshore("submit", str(file), "--wait")
    longshore("fetch", name, str(fetched), "--path", f"{manifest['spec']['storage']['output']}/metrics.jsonl")
    (metrics,) = (path for path in [fetched, *fetched.rglob("*")] if path.is_file())
    return rounds_of(metrics.read_text(encoding="utf-8").splitlines())


def rounds_of(lines: Sequence[str]) -> list[Round]:
    """Return every step's round, with what was measured in it, from the lines of `metrics.jsonl`."""
    rows = [json.loads(line) for line in lines]
    rounds = [
        {ours: row[theirs] for ours, theirs in METRICS.items() if theirs in row}
        for row in rows
        if "timing_s/gen" in row
    ]
    for one in rounds:
        if "control_path_s" in one:
            one["decision_s"] = one["control_path_s"] - one["apply_s"]
    return rounds


def figures_of(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return percentiles over the rounds in which pods were repurposed."""
    columns = {key: [one[key] for one in rounds if key in one] for key in ("decision_s", *METRICS)}
    return {
        "rounds": len(rounds),
        "repurposed_rounds": len(columns["control_path_s"]),
        **{
            key: {"p50": percentile(values, 0.5), "p99": percentile(values, 0.99), "max": max(values), "n": len(values)}
            for key, values in columns.items()
            if values
        },
    }


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that so large a share of them does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def manifests() -> dict[str, dict[str, Any]]:
    """Return the RLJobs of the workload, by name."""
    content = yaml.safe_load(WORKLOAD.read_text(encoding="utf-8"))
    found = {}
    for name, changes in content["jobs"].items():
        job = RLJob.model_validate({"metadata": {"name": name}, "spec": merged(content["spec"], changes)})
        found[name] = {"apiVersion": names.API_VERSION, "kind": names.KIND, **job.model_dump(
            mode="json", by_alias=True, exclude_unset=True)}  # fmt: skip
    return found


def main() -> int:
    """Start the cluster, run the jobs, report; returns the exit status."""
    jobs = manifests()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", nargs="+", choices=list(jobs), default=list(jobs))
    arguments = parser.parse_args()
    if missing := [name for name in ("vllm", "helm_python") if find_spec(name) is None]:
        print(f"repurpose: {missing[0]} is not installed: run `make setup`", file=sys.stderr)
        return 2
    try:
        with cluster() as longshore:
            rounds = {name: measure(longshore, name, jobs[name]) for name in arguments.jobs}
    except CommandFailed as failure:
        print(f"repurpose: {failure}", file=sys.stderr)
        return 2
    figures = {name: figures_of(of) for name, of in rounds.items()}
    report(
        "repurpose",
        {f"{name}/control_path_s": [one["control_path_s"] / GOAL_S for one in of if "control_path_s" in one]
         for name, of in rounds.items()},
        {"workload": f"benchmarks/{WORKLOAD.name}", "goal_s": GOAL_S},
        [{"job": name, "rounds": of} for name, of in rounds.items()],
        figures=figures,
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
