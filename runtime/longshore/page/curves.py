"""Convert the metrics of a run to columns of bounded length."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from longshore.page.view import Curves

MAX_POINTS: Final = 600
_SIGNIFICANT_DIGITS: Final = 6
_EXTREMES: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {"max": max, "min": min}


MetricsByStep = dict[int, dict[str, float]]


def add_rows(by_step: MetricsByStep, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows of `metrics.jsonl`; all rows of a step, such as those of an evaluation, become one."""
    for row in rows:
        found = by_step.setdefault(int(row["step"]), {})
        found |= {name: float(value) for name, value in row.items() if name != "step" and _is_number(value)}


def curves(rows: Iterable[Mapping[str, Any]], max_points: int = MAX_POINTS) -> Curves:
    """Build curves from rows of `metrics.jsonl`."""
    by_step: MetricsByStep = {}
    add_rows(by_step, rows)
    return curves_of(by_step, max_points)


def curves_of(by_step: MetricsByStep, max_points: int = MAX_POINTS) -> Curves:
    """Build curves from the metrics of all steps.

    If a run has more than `max_points` steps, each point stands for neighbouring steps: their mean, what a metric named
    `max` or `min` says of all of them, and of evaluations the last.
    """
    steps = sorted(by_step)
    size = max(1, math.ceil(len(steps) / max_points))
    buckets = [steps[start : start + size] for start in range(0, len(steps), size)]
    names = sorted({name for values in by_step.values() for name in values})
    return Curves(
        steps=tuple(bucket[-1] for bucket in buckets),
        values={
            name: tuple(
                _point(name, [by_step[step][name] for step in bucket if name in by_step[step]]) for bucket in buckets
            )
            for name in names
        },
        steps_per_point=size,
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _point(name: str, values: Sequence[float]) -> float | None:
    if not values:
        return None
    kind = name.rpartition("/")[2]
    if kind in _EXTREMES:
        value = _EXTREMES[kind](values)
    else:
        value = values[-1] if name.startswith("val/") else math.fsum(values) / len(values)
    return float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
