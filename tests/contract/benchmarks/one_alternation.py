"""In the coordinator pod of a test: one alternation of two sides of `everything`, its runs to another file."""

import json
import sys
from pathlib import Path

from benchmarks import everything
from benchmarks.workload import Workload


def main(workload_file: str, result_file: str, *sides: str) -> None:
    runs = everything.alternations(Workload(Path(workload_file)), sides, 1, warms_up=False)
    Path(result_file).write_text(json.dumps({name: run for name, (run,) in runs.items()}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
