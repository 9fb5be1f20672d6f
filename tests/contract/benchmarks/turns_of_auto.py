"""In the coordinator pod of a test: turns of the sides of `auto`, to another file."""

import json
import sys
from pathlib import Path

from benchmarks import auto
from benchmarks.period import running
from benchmarks.workload import Workload


def main(workload_file: str, result_file: str, num_turns: str, num_steps: str) -> None:
    workload = Workload(Path(workload_file))
    with running(workload) as parts:
        sides = {name: auto.Side.of(spec, len(parts.prompts.train)) for name, spec in workload.jobs.items()}
        runs = auto.take_turns(workload, sides, parts, 0, int(num_turns), int(num_steps))
    found = {"runs": runs, "ratios": auto.ratios(runs), "searches": len(sides[auto.AUTO].searches)}
    Path(result_file).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
