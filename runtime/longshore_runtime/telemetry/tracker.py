"""Interface of a tracking service, and the facts about a job that it gets."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from longshore.api.base import ApiModel
from longshore.api.tracking import Tracking
from longshore.page.redaction import without_secrets


@dataclass(frozen=True)
class TrackedRun:
    """Facts about a job that a tracker shows."""

    uid: str
    """uid of the job, unchanged by new attempts."""
    name: str
    project: str
    group: str | None
    config: Mapping[str, Any]
    """The spec without its secrets, because every user of the tracker may see it."""
    output: Path

    @classmethod
    def of(cls, tracking: Tracking, job: str, uid: str, output: Path, spec: ApiModel) -> "TrackedRun":
        """Describe the run of a job."""
        config = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        return cls(uid, tracking.name or job, tracking.project, tracking.group, without_secrets(config), output)


class Tracker(Protocol):
    """Client of a tracking service. One thread calls it; any method may raise any exception and take long."""

    def start(self, run: TrackedRun) -> int:
        """Begin or continue the run; return its last step, or -1 if it has none."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the metrics of a step."""

    def finish(self, *, succeeded: bool) -> None:
        """End the run, because the job has ended."""

    def pause(self) -> None:
        """Leave the run, because the attempt has ended; the job may continue with another one."""
