"""How every benchmark reports: raw figures in a file, medians with their spread, one JSON object as the last line."""

import json
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).parent / "results"


def spread(values: Sequence[float]) -> dict[str, float]:
    """Minimum, median and maximum."""
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
    machine = {"machine": platform.machine(), "python": platform.python_version()}
    summary = {
        "name": name,
        "ratios": spreads(ratios),
        **tables,
        "settings": {**settings, **machine},
        "raw": f"benchmarks/results/{path.name}",
    }
    path.write_text(json.dumps({**summary, "runs": list(raw)}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary))


def spreads(columns: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Minimum, median and maximum of each, rounded."""
    return {name: {key: round(value, 3) for key, value in spread(values).items()} for name, values in columns.items()}
