"""Report RLJob.status.runtime. The newest report wins, and training never waits for it.

A pod may outlive its job (`kubectl delete --cascade=orphan`), and another job may have the name by then. So a report is
a JSON patch that tests the uid: an API server ignores the uid in every other kind of patch of a status.

The newest report also arrives: a coordinator that waits may make no other one. So where the API server is away, that
report is sent again.

Every report is a write to the cluster's database and wakes everyone who watches the job, and a step that takes a second
makes ten of them. So what only people look at is reported once per second, and less often the longer the same activity
of a step takes; what the operator acts on, at once.
"""

import math
import threading
import time
from typing import Final, Protocol

import structlog

from longshore.api import names
from longshore.api.runtime_status import RuntimeStatus
from longshore_kube.access import Access
from longshore_kube.blocking import Blocking
from longshore_kube.client import Patch
from longshore_kube.errors import ApiError
from longshore_kube.resources import Json, Resource
from longshore_runtime.errors import first_line
from longshore_runtime.telemetry.status_fields import is_urgent

log = structlog.get_logger()

PACE_S: Final = 1.0
"""Least seconds between two reports that are not urgent."""
SLOWEST_PACE_S: Final = 10.0
_SHARE: Final = 0.05
"""Pause between two reports of an activity, as a share of its time so far: nobody sees a bar move by less."""
FIRST_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 15.0
_MAY_PASS: Final = frozenset({401, 403, 408, 409, 429})
"""Statuses that refuse a correct report for a while: credentials are renewed, or the server is busy."""
_RLJOBS: Final = Resource(names.GROUP, names.VERSION, names.PLURAL, names.KIND)


def pace_after(elapsed_s: float, least_s: float = PACE_S) -> float:
    """Return the pause between two reports of an activity that has taken `elapsed_s`."""
    return max(least_s, min(_SHARE * elapsed_s, SLOWEST_PACE_S))


class StatusSink(Protocol):
    """Receiver of the coordinator's reports."""

    def report(self, status: RuntimeStatus) -> None:
        """Publish a status; does not wait."""

    def close(self) -> None:
        """Publish the last report, and end."""


class StatusReporter:
    """Write reports in a separate thread: the newest one until it has arrived, or until the server has refused it."""

    def __init__(
        self, access: Access, namespace: str, job: str, uid: str, *, pace_s: float = PACE_S,
        retry_s: float = FIRST_RETRY_S,
    ) -> None:  # fmt: skip
        """Start the thread.

        Args:
            uid: of the job; the server refuses reports to another job of the name.
        """
        self._pace_s = pace_s
        self._first_retry_s = self._retry_s = retry_s
        self._kube = Blocking(access, names.COORDINATOR_FIELD_MANAGER)
        self._namespace = namespace
        self._job, self._uid = job, uid
        self._changed = threading.Condition()
        self._newest: RuntimeStatus | None = None
        self._waiting: RuntimeStatus | None = None
        self._is_urgent = self._closed = False
        self._retry_at_s = self._sent_s = -math.inf
        self._since_s = time.monotonic()
        """Time at which the activity that was reported last began, by the monotonic clock."""
        self._thread = threading.Thread(target=self._run, name="status-reporter", daemon=True)
        self._thread.start()

    def report(self, status: RuntimeStatus) -> None:
        with self._changed:
            self._is_urgent = self._is_urgent or is_urgent(self._newest, status)
            if self._newest is None or (self._newest.activity, self._newest.step) != (status.activity, status.step):
                self._since_s = time.monotonic()
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
                self._retry_s = self._first_retry_s
            except Exception as error:  # noqa: BLE001 - a report that fails must not end all later ones
                is_lost = _is_refusal(error) or not self._repeat(status)
                log.warning("status not reported" if is_lost else "status not reported yet", error=first_line(error))

    def _repeat(self, status: RuntimeStatus) -> bool:
        """Send the report again after a pause, unless there is a newer one by then; return False without time."""
        with self._changed:
            if self._closed:
                return False
            if self._waiting is None:
                self._waiting = status
            self._retry_at_s = time.monotonic() + self._retry_s
            self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)
            return True

    def _next(self) -> RuntimeStatus | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is not None or self._closed)
            while not (self._is_urgent or self._closed) and (wait_s := self._due_s() - time.monotonic()) > 0:
                self._changed.wait(wait_s)
            status, self._waiting = self._waiting, None
            self._is_urgent = False
            self._sent_s = time.monotonic()
            return status

    def _due_s(self) -> float:
        """Return when a report that is not urgent may be sent; a new activity does not wait as long as an old one."""
        return max(self._retry_at_s, self._sent_s + pace_after(self._sent_s - self._since_s, self._pace_s))

    def _apply(self, status: RuntimeStatus) -> None:
        runtime = status.model_dump(mode="json", exclude_none=True)
        change: list[Json] = [
            {"op": "test", "path": "/metadata/uid", "value": self._uid},
            {"op": "add", "path": "/status/runtime", "value": runtime},
        ]
        self._kube.call(
            lambda client: client.patch(
                _RLJOBS, self._job, self._namespace, change, kind=Patch.JSON, subresource="status"
            )
        )


def _is_refusal(error: Exception) -> bool:
    """Return whether the server refuses the report itself, as it would again."""
    return isinstance(error, ApiError) and 400 <= error.code < 500 and error.code not in _MAY_PASS
