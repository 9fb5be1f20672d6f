"""Times as the Kubernetes API writes them: RFC 3339, in UTC."""

from datetime import UTC, datetime


def rfc3339(moment: datetime | float) -> str:
    """Format a time as `metav1.Time` has it, rounded down to the second. A number is Unix time in seconds."""
    return _utc(moment).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(moment: datetime | float) -> str:
    """Format a time as `metav1.MicroTime` has it."""
    return _utc(moment).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> datetime:
    """Return a time of the API server.

    Raises:
        ValueError: it is none.
    """
    return datetime.fromisoformat(text)


def _utc(moment: datetime | float) -> datetime:
    return moment.astimezone(UTC) if isinstance(moment, datetime) else datetime.fromtimestamp(moment, UTC)
