"""Report every benchmark alike: raw figures in a file, medians with their spread, a JSON object as the last line."""

import contextlib
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Return what a result was measured on, and how busy that was."""
    return {
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "commit": _commit(),
    }


def _commit() -> str:
    """Return the commit of the checkout, marked where files differ from it; empty where there is none."""
    command = ["git", "-C", str(RESULTS.parent), "describe", "--always", "--dirty", "--abbrev=12"]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return minimum, median and maximum."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def report(
    name: str,
    ratios: Mapping[str, Sequence[float]],
    settings: Mapping[str, Any],
    raw: Sequence[Mapping[str, Any]],
    **tables: Mapping[str, Any],
) -> None:
    """Keep the raw figures in `results/NAME.json` and print the summary; `tables` are further parts of it."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    summary = {
        "name": name,
        "ratios": spreads(ratios),
        **tables,
        "settings": {**settings, **machine()},
        "raw": f"benchmarks/results/{path.name}",
    }
    path.write_text(_document(summary, raw), encoding="utf-8")
    print(json.dumps(summary))


def _document(summary: Mapping[str, Any], raw: Sequence[Mapping[str, Any]]) -> str:
    """Return JSON with a line for each part of the summary and for each run."""
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in summary.items()]
    runs = ",\n".join(map(json.dumps, raw))
    return "{" + ",\n".join([*parts, f'"runs": [\n{runs}\n]']) + "}\n"


def spreads(columns: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Return minimum, median and maximum of each column, rounded."""
    return {name: {key: round(value, 3) for key, value in spread(values).items()} for name, values in columns.items()}


def ratios_to(
    baselines: Mapping[str, str], runs: Mapping[str, Sequence[Mapping[str, Any]]], figures: Sequence[str]
) -> dict[str, list[float]]:
    """Return figures of the runs of each name over those of its baseline, without those that are zero there."""
    return {
        f"{name}/{key}": [run[key] / base[key] for run, base in zip(runs[name], runs[baseline], strict=True)]
        for name, baseline in baselines.items()
        for key in figures
        if all(base[key] > 0 for base in runs[baseline])
    }


def others(runs: Mapping[str, Any], baseline: str) -> dict[str, str]:
    """Return the baseline of every other name."""
    return {name: baseline for name in runs if name != baseline}
