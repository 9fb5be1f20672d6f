"""Regroup the engines between rounds to the tensor-parallel size of the newest assignment."""

from typing import Protocol

import structlog

from longshore.api.round_status import RoundKind
from longshore.api.status import Assignment, Overlay
from longshore_runtime.backends.engine_spec import EngineStartError
from longshore_runtime.elastic.job_watch import Assignments
from longshore_runtime.rollout.engine_pool import EnginePool

log = structlog.get_logger()


class RegroupingReport(Protocol):
    """Receiver of reports about assignments."""

    def engines(self, tp_size: int) -> None:
        """Report the tensor-parallel size of the engines."""

    def applied(self, epoch: int, trainer_pods: tuple[int, ...]) -> None:
        """Report that an assignment has been carried out."""

    def rejected(self, epoch: int, reason: str, refused_tp_size: int = 0) -> None:
        """Report that an assignment was refused, possibly because engines do not start with this size."""


class Regrouping:
    """Actual sizes of the engines, and those of the assignment."""

    def __init__(self, assignments: Assignments, engines: EnginePool, report: RegroupingReport, attempt: int) -> None:
        self._assignments = assignments
        self._engines = engines
        self._report = report
        self._attempt = attempt
        self._impossible: set[tuple[int, int]] = set()
        """Pair (epoch, size) that could not be carried out."""
        self.epoch = 0
        """Newest assignment that was answered."""
        self._overlay: Overlay | None = None
        """Newest overlay that was answered; later assignments may repeat it."""

    def answered(self, epoch: int, overlay: Overlay | None) -> None:
        """Note that a round has answered this assignment, and carried out or refused this overlay."""
        self.epoch, self._overlay = max(epoch, self.epoch), overlay or self._overlay

    def apply(self, kind: RoundKind, number: int) -> None:
        """Regroup before a round of this kind and number starts. Without an operator everything stays as it is."""
        assignment = self._assignments.newest()
        if assignment.epoch == 0:
            return
        if self.epoch == 0 and assignment.overlay is not None and assignment.overlay.round < number:
            self._overlay = assignment.overlay  # Of a round that an earlier session has answered.
        tp_size = assignment.baseline.tp_size_of(kind)
        error = self._regroup(assignment, tp_size)
        is_news, self.epoch = assignment.epoch > self.epoch, max(assignment.epoch, self.epoch)
        overlay = assignment.overlay if assignment.overlay != self._overlay else None
        if error:
            self._report.rejected(assignment.epoch, error, tp_size)
        elif is_news and overlay is not None and (overlay.attempt, overlay.round < number) == (self._attempt, True):
            self._report.rejected(assignment.epoch, f"it came when round {overlay.round} was over")
        elif self._engines.tp_size == tp_size:
            self._report.applied(self.epoch, ())

    def _regroup(self, assignment: Assignment, tp_size: int) -> str:
        """Regroup to a size; return why that failed, at the first failure; empty on success."""
        if tp_size == self._engines.tp_size or (assignment.epoch, tp_size) in self._impossible:
            return ""
        log.info("engines regroup", tp_size=tp_size, reason=assignment.reason)
        try:
            self._engines.regroup(tp_size)
        except EngineStartError as error:
            self._impossible.add((assignment.epoch, tp_size))
            return str(error)
        finally:
            self._report.engines(self._engines.tp_size)
        return ""
