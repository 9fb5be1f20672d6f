"""Kubernetes timestamps: UTC, most of them in whole seconds."""

from datetime import UTC, datetime, timedelta


def timestamp(moment: datetime) -> str:
    """RFC 3339, rounded down to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(moment: datetime) -> str:
    """RFC 3339 with microseconds, as fields of type MicroTime have it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def timestamp_not_before(moment: datetime) -> str:
    """RFC 3339, rounded up to the second: waiting until then never ends early."""
    return timestamp(moment + timedelta(microseconds=999_999) if moment.microsecond else moment)


def next_of(now: datetime, *moments: datetime | None) -> datetime | None:
    """The first of those that are still to come."""
    return min((moment for moment in moments if moment is not None and moment > now), default=None)


def parse(text: str) -> datetime:
    """A timestamp of the API server."""
    return datetime.fromisoformat(text)
