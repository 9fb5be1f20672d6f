"""Replace the operator where there is no API server.

This calls its decision code with the reports of the coordinator, and puts the assignments into the driver's events.
"""

import queue
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from longshore.api.names import Component
from longshore.api.rljob import RLJob
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore.api.status import Assignment, RLJobStatus
from longshore_operator.config import OperatorConfig
from longshore_operator.context import Context, LifecycleProgress, Observed
from longshore_operator.elasticity import reconcile_elasticity
from longshore_runtime.rollout.events import AssignmentChanged, Event

ATTEMPT: Final = 1
"""Number of the only attempt: the coordinator of a benchmark does not start twice."""


class LocalOperator:
    """Implements `StatusSink` and `Assignments`, in the thread that reports."""

    def __init__(
        self,
        spec: RLJobSpec,
        events: "queue.SimpleQueue[Event]",
        on_assigned: Callable[[Assignment], None] = lambda assignment: None,
    ) -> None:
        self._job = RLJob(spec=spec)
        self._events = events
        self._on_assigned = on_assigned
        self._progress = LifecycleProgress(
            attempt=ATTEMPT, failures=0, phase=None, start_time=None, restart_time=None, completion_time=None
        )
        self._write(RuntimeStatus(attempt=ATTEMPT))

    def report(self, status: RuntimeStatus) -> None:
        before = self.newest()
        self._write(status)
        if self.newest().epoch > before.epoch:
            self._on_assigned(self.newest())
            self._events.put(AssignmentChanged(self.newest()))

    def newest(self) -> Assignment:
        return self._job.status.assignment

    def address_of(self, component: Component, index: int) -> str | None:
        """Return None: there is no such pod."""
        return None

    def close(self) -> None:
        """Do nothing: no report waits."""

    def _write(self, runtime: RuntimeStatus) -> None:
        job = self._job.model_copy(update={"status": self._job.status.model_copy(update={"runtime": runtime})})
        config = OperatorConfig(runtime_image="none")
        context = Context(job, Observed(), datetime.now(UTC), config, self._progress, decided=RLJobStatus())
        decided = reconcile_elasticity(context).status
        status = job.status.model_copy(update={"assignment": decided.assignment, "planner": decided.planner})
        self._job = job.model_copy(update={"status": status})
