"""Change the number of worker pods of a job between two steps, or while pods are awaited."""

from typing import Protocol

from longshore.api.runtime_status import JobSize
from longshore_runtime.elastic.job_watch import Assignments
from longshore_runtime.errors import SizeChanged


class SizeReport(Protocol):
    """Receiver of the number of worker pods that the coordinator runs with."""

    @property
    def size(self) -> JobSize | None:
        """Size that was reported last; None: all pods of the spec."""

    def resized(self, size: JobSize) -> None:
        """Report that the job runs with this size."""


class AppliedSize:
    """The number of worker pods that a session has, against the number that it should have."""

    def __init__(self, assignments: Assignments, report: SizeReport, num_workers: int) -> None:
        self._assignments = assignments
        self._report = report
        self._num_workers = num_workers

    def change(self) -> int | None:
        """Return the wanted number of worker pods if the session has another one; acknowledge an equal number."""
        asked = self._assignments.newest().size
        if asked is None or asked == self._report.size:
            return None
        if asked.workers != self._num_workers:
            return asked.workers
        self._report.resized(asked)
        return None


def require_no_fewer(assignments: Assignments, num_workers: int) -> None:
    """Raise SizeChanged if fewer worker pods than this are asked for: the others may never come.

    More are taken at the end of a step.
    """
    asked = assignments.newest().size
    if asked is not None and asked.workers < num_workers:
        raise SizeChanged(asked.workers)
