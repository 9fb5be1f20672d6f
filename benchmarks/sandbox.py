"""Measure what the sandbox costs: the same test cases warm, cold, and by a bare interpreter without protection.

One alternation runs as many cases of an ordinary program in each way: `bare` starts a Python process per case, as
verifiers without a sandbox do; `warm` is a sandbox with every layer that the machine offers; `unprotected` is the same
without layers; `cold` makes a new sandbox for each case. Figures are seconds per case as ratios over `bare`.
"""

import argparse
import subprocess
import time
from collections.abc import Callable
from typing import Any

from benchmarks.report import report
from longshore_runtime.sandbox.cases import CaseOutcome, StdioCase
from longshore_runtime.sandbox.layers import SandboxLimits
from longshore_runtime.sandbox.sandbox import Sandbox
from longshore_runtime.sandbox.worker import default_python

PROGRAM = """
import collections, heapq, json, math, re, sys

numbers = [int(word) for word in re.findall(r"-?\\d+", sys.stdin.read())]
heapq.heapify(numbers)
print(sum(heapq.heappop(numbers) for _ in range(len(numbers))), math.gcd(*range(6, 60, 6)))
"""
CASES = [StdioCase(" ".join(str(n * k) for n in range(50)), f"{1225 * k} 6\n") for k in range(8)]
LIMITS = SandboxLimits(wall_s=10.0, memory_bytes=256 << 20)
COLD_SHARE = 4
"""Divisor of the number of cold cases, because they take long."""


def bare(case: StdioCase) -> bool:
    """Return whether a case passes in a process of its own."""
    command = [default_python(), "-I", "-c", PROGRAM]
    printed = subprocess.run(command, input=case.stdin, capture_output=True, text=True, check=True).stdout
    return printed == case.stdout


def sandboxed(sandbox: Sandbox, case: StdioCase) -> bool:
    """Return whether a case passes in a sandbox, which is warm if it has run before."""
    return sandbox.run(PROGRAM, [case])[0].outcome is CaseOutcome.PASSED


def cold(case: StdioCase) -> bool:
    """Return whether a case passes in a new sandbox."""
    with Sandbox(limits=LIMITS) as sandbox:
        return sandboxed(sandbox, case)


def seconds_per_case(run: Callable[[StdioCase], bool], num_cases: int) -> float:
    """Return the mean time of one case; every case must pass."""
    started_s = time.perf_counter()
    for number in range(num_cases):
        assert run(CASES[number % len(CASES)]), "every way must judge alike"
    return (time.perf_counter() - started_s) / num_cases


def main() -> int:
    """Run the alternations and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alternations", type=int, default=7)
    parser.add_argument("--cases", type=int, default=100, help="cases per way and alternation")
    arguments = parser.parse_args()
    runs: list[dict[str, Any]] = []
    with Sandbox(limits=LIMITS) as full, Sandbox(frozenset(), LIMITS) as unprotected:
        ways: dict[str, Callable[[StdioCase], bool]] = {
            "bare": bare,
            "warm": lambda case: sandboxed(full, case),
            "unprotected": lambda case: sandboxed(unprotected, case),
            "cold": cold,
        }
        for run in ways.values():
            seconds_per_case(run, 1)  # Warms up.
        for number in range(arguments.alternations):
            for way, run in ways.items():
                taken_s = seconds_per_case(run, arguments.cases // (COLD_SHARE if way == "cold" else 1))
                runs.append({"alternation": number, "way": way, "s_per_case": taken_s, "cases_per_s": 1 / taken_s})
        layers = sorted(full.layers)
    taken = {way: [run["s_per_case"] for run in runs if run["way"] == way] for way in ways}
    ratios = {
        f"{way}_s_per_case_over_bare": [mine / theirs for mine, theirs in zip(taken[way], taken["bare"], strict=True)]
        for way in ("warm", "unprotected", "cold")
    }
    settings = {"alternations": arguments.alternations, "cases": arguments.cases, "layers": layers}
    report("sandbox", ratios, settings, runs)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
