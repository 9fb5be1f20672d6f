"""Report RLJob.status.runtime by server-side apply. The newest report wins, and training never waits.

Every report is a write to the cluster's database and wakes everyone who watches the job, and a step that takes a second
makes ten of them. So what only people look at is reported once per second; what the operator acts on, at once.
"""

import threading
import time
from typing import Final, Protocol

import structlog

from longshore.api import names
from longshore.api.runtime_status import RuntimeStatus
from longshore_kube.access import Access
from longshore_kube.blocking import Blocking
from longshore_kube.resources import Resource
from longshore_runtime.errors import first_line
from longshore_runtime.telemetry.status_fields import is_urgent

log = structlog.get_logger()

PACE_S: Final = 1.0
"""Between two reports that are not urgent."""
_RLJOBS: Final = Resource(names.GROUP, names.VERSION, names.PLURAL, names.KIND)


class StatusSink(Protocol):
    """Receiver of the coordinator's reports."""

    def report(self, status: RuntimeStatus) -> None:
        """Publish a status; does not wait."""

    def close(self) -> None:
        """Publish the last report, and end."""


class StatusReporter:
    """Write reports in a separate thread. A report that cannot be written is logged, and the next one is tried."""

    def __init__(self, access: Access, namespace: str, job: str, pace_s: float = PACE_S) -> None:
        self._pace_s = pace_s
        self._kube = Blocking(access, names.COORDINATOR_FIELD_MANAGER)
        self._namespace = namespace
        self._job = job
        self._changed = threading.Condition()
        self._newest: RuntimeStatus | None = None
        self._waiting: RuntimeStatus | None = None
        self._is_urgent = self._closed = False
        self._due_s = 0.0
        """When the next report that is not urgent may be sent, by the monotonic clock."""
        self._thread = threading.Thread(target=self._run, name="status-reporter", daemon=True)
        self._thread.start()

    def report(self, status: RuntimeStatus) -> None:
        with self._changed:
            self._is_urgent = self._is_urgent or is_urgent(self._newest, status)
            self._newest = self._waiting = status
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout=30)
        self._kube.close()

    def _run(self) -> None:
        while (status := self._next()) is not None:
            try:
                self._apply(status)
            except Exception as error:  # noqa: BLE001 - a report that fails must not end all later ones
                log.warning("status not reported", error=first_line(error))

    def _next(self) -> RuntimeStatus | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is not None or self._closed)
            self._changed.wait_for(lambda: self._is_urgent or self._closed, max(0.0, self._due_s - time.monotonic()))
            status, self._waiting = self._waiting, None
            self._is_urgent = False
            self._due_s = time.monotonic() + self._pace_s
            return status

    def _apply(self, status: RuntimeStatus) -> None:
        body = {
            "metadata": {"namespace": self._namespace, "name": self._job},
            "status": {"runtime": status.model_dump(mode="json", exclude_none=True)},
        }
        self._kube.call(lambda client: client.apply(_RLJOBS, body, "status"))
