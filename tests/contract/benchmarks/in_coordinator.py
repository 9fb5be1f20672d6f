"""In the coordinator pod of a test: a part of a benchmark, and what it found to a file."""

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import auto, everything
from benchmarks.local_pods import run_in_coordinator
from benchmarks.overlap import Alternations
from benchmarks.period import running
from benchmarks.workload import Workload

from tests.warm import WarmProgram


def found_in_coordinator(workload: Path, part: str, *arguments: object) -> Any:
    """Start the pods of a workload file, and what a part of a benchmark finds there."""
    result = workload.with_suffix(".json")
    given = [str(workload), str(result), part, *map(str, arguments)]
    assert run_in_coordinator(__name__, given, Workload(workload).spec, run_module=WarmProgram) == 0
    return json.loads(result.read_text())


def without_models(document: dict[str, Any], num_prompts: int) -> None:
    """Make the workload of a benchmark one whose engines and trainers have no model, and whose responses are short."""
    document["responseTokens"]["max"] = 64
    spec = document["spec"]
    spec["model"] = {"builtin": "Tiny", "maxContextTokens": 1024}
    spec["rollout"]["engine"] = {"backend": "Fake", "extraArgs": {"median_tokens": 100_000, "step_s": 0.01}}
    spec["trainer"] = {"backend": "Fake"}
    spec["algorithm"]["promptsPerStep"] = num_prompts


def alternation(workload: Workload, *sides: str) -> Any:
    """One of these sides of `everything`."""
    runs = everything.alternations(workload, sides, 1, warms_up=False)
    return {name: run for name, (run,) in runs.items()}


def period(workload: Workload, num_rounds: str) -> Any:
    """One of every job."""
    with running(workload) as parts:
        runs = Alternations(workload.jobs, parts, workload.lengths, int(num_rounds)).run(1, lambda steps: {})
    return {name: run for name, (run,) in runs.items()}


def turns(workload: Workload, num_turns: str, num_steps: str) -> Any:
    """Of the sides of `auto`."""
    with running(workload) as parts:
        sides = {name: auto.Side.of(spec, len(parts.prompts.train)) for name, spec in workload.jobs.items()}
        runs = auto.take_turns(workload, sides, parts, 0, int(num_turns), int(num_steps))
    return {"runs": runs, "ratios": auto.ratios(runs), "searches": len(sides[auto.AUTO].searches)}


def main(workload_file: str, result_file: str, part: str, *arguments: str) -> None:
    parts: dict[str, Any] = {"alternation": alternation, "period": period, "turns": turns}
    found = parts[part](Workload(Path(workload_file)), *arguments)
    Path(result_file).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
