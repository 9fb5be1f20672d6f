"""The time, and ages as kubectl shows them."""

from datetime import UTC, datetime

from longshore_kube.times import parse_time


def utc_now() -> datetime:
    return datetime.now(UTC)


def age(since: str | None, now: datetime) -> str:
    """Return the short form of kubectl's AGE column: two units while the first is small."""
    if not since:
        return "<unknown>"
    return human_duration(int((now - parse_time(since)).total_seconds()))


def human_duration(seconds: int) -> str:
    if seconds < -1:
        return "<invalid>"
    if seconds < 0:
        return "0s"
    if seconds < 120:
        return f"{seconds}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 365 * 2:
        return f"{days}d"
    years = days // 365
    if years < 8:
        rest = days % 365
        return f"{years}y{rest}d" if rest else f"{years}y"
    return f"{years}y"
