"""Numbers and times as people read them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

_BARS: Final = "▁▂▃▄▅▆▇█"


def duration(seconds: float) -> str:
    """Format seconds as 0.42 s, 9.3 s, 1m15s or 2h03m."""
    if seconds < 1:
        return f"{seconds:.2f}s"
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest_s:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


def share(fraction: float) -> str:
    """Format 0.123 as 12.3 %."""
    return f"{100 * fraction:.1f} %"


def reward(value: float | None) -> str:
    """Format a reward with three decimals, or as a dash where there is none."""
    return "–" if value is None else f"{value:.3f}"


def change(before: float | None, after: float | None) -> str:
    """Format a change as `0.561 → 0.743 (+0.182)`, or what is known of it."""
    if before is None or after is None:
        return reward(before) if after is None else reward(after)
    return f"{reward(before)} → {reward(after)} ({after - before:+.3f})"


def count(number: int, thing: str) -> str:
    """Format a number of things as `1 round`, `2 rounds`, `12,000 rounds`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def size(num_bytes: float) -> str:
    """Return bytes with a decimal prefix."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the last `width` values (means where there are more) between their least and greatest."""
    if not values:
        return ""
    points = _resampled(values, width)
    low, high = min(points), max(points)
    if high == low:
        return _BARS[3] * len(points)
    top = len(_BARS) - 1
    return "".join(_BARS[round((point - low) / (high - low) * top)] for point in points)


def _resampled(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    edges = [index * len(values) // width for index in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
