"""The coordinator watches its own RLJob: for assignments, and for the addresses of its reward pods."""

import queue
import threading
from collections.abc import Sequence
from typing import Any, Final, Protocol

import structlog
from kubernetes import client, watch
from pydantic import ValidationError
from urllib3.exceptions import HTTPError

from longshore.api import names
from longshore.api.mistakes import sentence
from longshore.api.status import Assignment, RewardPodCounts
from longshore_runtime.kube_access import load_credentials
from longshore_runtime.rollout.events import AssignmentChanged, Event

log = structlog.get_logger()

_WATCH_S: Final = 300
"""The API server ends a watch after so long, and another one follows."""
_READ_TIMEOUT_S: Final = 330
_FIRST_RETRY_S: Final = 0.5
_MAX_RETRY_S: Final = 30.0


class Assignments(Protocol):
    """What the operator asks of the GPU pods, and where it has put reward pods."""

    def newest(self) -> Assignment:
        """As far as it is known; epoch 0 while nothing is."""

    def reward_address(self, index: int) -> str | None:
        """IP address of a reward pod of this attempt, as far as it is known."""

    def close(self) -> None:
        """Look no longer."""


class NoOperator:
    """Implements `Assignments` where there is no API server: everything stays as the spec says."""

    def newest(self) -> Assignment:
        return Assignment()

    def reward_address(self, index: int) -> str | None:
        return None

    def close(self) -> None:
        """There is nothing to close."""


class JobWatch:
    """Puts every epoch into the driver's events once. Without the API server rounds go on with what was known last."""

    def __init__(self, namespace: str, job: str, events: "queue.SimpleQueue[Event]") -> None:
        load_credentials()
        self._api = client.CustomObjectsApi()
        self._namespace, self._job = namespace, job
        self._events = events
        self._lock = threading.Lock()
        self._newest = Assignment()
        self._rewards: Sequence[str] = ()
        self._closed = threading.Event()
        self._watch = watch.Watch()
        threading.Thread(target=self._run, name="job-watch", daemon=True).start()

    def newest(self) -> Assignment:
        with self._lock:
            return self._newest

    def reward_address(self, index: int) -> str | None:
        with self._lock:
            return self._rewards[index] or None if index < len(self._rewards) else None

    def close(self) -> None:
        self._closed.set()
        self._watch.stop()

    def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while not self._closed.is_set():
            try:
                self._follow()
                retry_s = _FIRST_RETRY_S
            except Exception as error:
                # Whatever breaks a watch must not end all later ones.
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                known = isinstance(error, client.ApiException | HTTPError)
                log.warning("watch of the RLJob broke", error=reason, retry_s=retry_s, exc_info=not known)
                self._closed.wait(retry_s)
                retry_s = min(2 * retry_s, _MAX_RETRY_S)

    def _follow(self) -> None:
        """Every watch begins with the state as it is, so that nothing is missed between two of them."""
        events = self._watch.stream(
            self._api.list_namespaced_custom_object,
            names.GROUP,
            names.VERSION,
            self._namespace,
            names.PLURAL,
            field_selector=f"metadata.name={self._job}",
            timeout_seconds=_WATCH_S,
            _request_timeout=_READ_TIMEOUT_S,
        )
        for event in events:
            if event["type"] in ("ADDED", "MODIFIED"):
                status = event["object"].get("status", {})
                self._take_addresses(status.get("rewards", {}))
                self._take(status.get("assignment", {}))

    def _take_addresses(self, written: dict[str, Any]) -> None:
        try:
            addresses = RewardPodCounts.model_validate(written).addresses
        except ValidationError as error:
            log.warning("addresses of another version of the operator", error=sentence(error))
            return
        with self._lock:
            self._rewards = tuple(addresses)

    def _take(self, written: dict[str, Any]) -> None:
        try:
            assignment = Assignment.model_validate(written)
        except ValidationError as error:
            log.warning("assignment of another version of the operator", error=sentence(error))
            return
        with self._lock:
            if assignment.epoch <= self._newest.epoch:
                return
            self._newest = assignment
        self._events.put(AssignmentChanged(assignment))
