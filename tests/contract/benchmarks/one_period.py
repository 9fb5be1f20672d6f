"""In the coordinator pod of a test: one period of every job of a workload file, its figures to another file."""

import json
import sys
from pathlib import Path

from benchmarks.overlap import Alternations
from benchmarks.period import running
from benchmarks.workload import Workload


def main(workload_file: str, result_file: str, num_rounds: str) -> None:
    workload = Workload(Path(workload_file))
    with running(workload) as parts:
        alternations = Alternations(workload.jobs, parts, workload.lengths, int(num_rounds))
        runs = alternations.run(1, lambda steps: {})
    Path(result_file).write_text(json.dumps({name: run for name, (run,) in runs.items()}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
