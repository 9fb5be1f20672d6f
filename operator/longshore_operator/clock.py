"""Times to wait for. Kubernetes writes most of its timestamps in whole seconds."""

from datetime import datetime, timedelta

from longshore_kube.times import rfc3339


def rfc3339_not_before(moment: datetime) -> str:
    """RFC 3339, rounded up to the second: waiting until then never ends early."""
    return rfc3339(moment + timedelta(microseconds=999_999) if moment.microsecond else moment)


def next_of(now: datetime, *moments: datetime | None) -> datetime | None:
    """Return the first of those that are still to come."""
    return min((moment for moment in moments if moment is not None and moment > now), default=None)
