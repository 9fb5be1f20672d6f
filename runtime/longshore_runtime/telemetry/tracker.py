"""What a tracking service offers, and what it is given of a job."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from longshore.api.addresses import redacted
from longshore.api.base import ApiModel
from longshore.api.tracking import Tracking


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker shows about a job."""

    uid: str
    """uid of the job, unchanged by new attempts."""
    name: str
    project: str
    group: str | None
    config: Mapping[str, Any]
    """The spec."""
    output: Path

    @classmethod
    def of(cls, tracking: Tracking, job: str, uid: str, output: Path, spec: ApiModel) -> "TrackedRun":
        """Describe the run of a job."""
        config = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        return cls(uid, tracking.name or job, tracking.project, tracking.group, _without_credentials(config), output)


def _without_credentials(value: Any) -> Any:
    """Return a spec without passwords in addresses, which every user of a tracker may see."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {name: _without_credentials(one) for name, one in value.items()}
    return [_without_credentials(one) for one in value] if isinstance(value, list) else value


class Tracker(Protocol):
    """One tracking service. One thread calls it; any method may raise any exception and take long."""

    def start(self, run: TrackedRun) -> int:
        """Begin or continue the run; return its last step, or -1 if it has none."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the metrics of a step."""

    def finish(self, *, succeeded: bool) -> None:
        """End the run, because the job has ended."""

    def pause(self) -> None:
        """Leave the run, because the attempt has ended; the job may continue with another one."""
