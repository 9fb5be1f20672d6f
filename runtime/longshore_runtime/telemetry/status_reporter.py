"""Reports RLJob.status.runtime by server-side apply, and nothing else. The newest report wins; training never waits."""

import threading
from typing import Protocol

import structlog
from kubernetes import client
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_exponential
from urllib3.exceptions import HTTPError

from longshore.api import names
from longshore.api.runtime_status import RuntimeStatus
from longshore_runtime.kube_access import load_credentials

log = structlog.get_logger()


class StatusSink(Protocol):
    """Takes reports of the coordinator."""

    def report(self, status: RuntimeStatus) -> None:
        """Publish; does not wait."""

    def close(self) -> None:
        """Publish what is still waiting."""


class StatusReporter:
    """Writes in a thread of its own. A report that cannot be written is logged, and the next one tried."""

    def __init__(self, namespace: str, job: str) -> None:
        load_credentials()
        self._api = client.CustomObjectsApi()
        self._namespace = namespace
        self._job = job
        self._changed = threading.Condition()
        self._waiting: RuntimeStatus | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="status-reporter", daemon=True)
        self._thread.start()

    def report(self, status: RuntimeStatus) -> None:
        with self._changed:
            self._waiting = status
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        while (status := self._next()) is not None:
            try:
                self._apply(status)
            except Exception as error:  # noqa: BLE001 - a report that fails must not end all later ones
                log.warning("status not reported", error=(str(error).splitlines() or [type(error).__name__])[0])

    def _next(self) -> RuntimeStatus | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is not None or self._closed)
            status, self._waiting = self._waiting, None
            return status

    @retry(
        retry=retry_if_exception_type((client.ApiException, HTTPError)),
        stop=stop_after_attempt(4),
        wait=wait_exponential(multiplier=0.5, max=5),
        reraise=True,
    )
    def _apply(self, status: RuntimeStatus) -> None:
        self._api.patch_namespaced_custom_object_status(
            names.GROUP,
            names.VERSION,
            self._namespace,
            names.PLURAL,
            self._job,
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "metadata": {"name": self._job},
                "status": {"runtime": status.model_dump(mode="json", exclude_none=True)},
            },
            field_manager=names.COORDINATOR_FIELD_MANAGER,
            force=True,
            _content_type="application/apply-patch+yaml",
            _request_timeout=10,
        )
