"""Watch the coordinator's own RLJob: for assignments, and for the addresses of its reward and environment pods."""

import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import structlog
from pydantic import ValidationError

from longshore.api import names
from longshore.api.mistakes import sentence
from longshore.api.names import Component
from longshore.api.status import Assignment, ListeningPodCounts, RewardPodCounts
from longshore_kube.access import Access
from longshore_kube.blocking import Blocking
from longshore_kube.errors import KubeError
from longshore_kube.reflector import Listed, Reflector
from longshore_kube.resources import Json, Resource
from longshore_runtime.rollout.events import AssignmentChanged, Event

log = structlog.get_logger()

_RLJOBS: Final = Resource(names.GROUP, names.VERSION, names.PLURAL, names.KIND)


class Assignments(Protocol):
    """Source of what the operator asks of the GPU pods, and of the addresses of pods that the coordinator asks."""

    def newest(self) -> Assignment:
        """Return the newest assignment that is known; its epoch is 0 while none is."""

    def address_of(self, component: Component, index: int) -> str | None:
        """Return the IP address of a reward or environment pod of this attempt, or None while it is unknown."""

    def close(self) -> None:
        """Stop looking for assignments and addresses."""


class NoOperator:
    """Implements `Assignments` where there is no API server: everything stays as the spec says."""

    def newest(self) -> Assignment:
        return Assignment()

    def address_of(self, component: Component, index: int) -> str | None:
        return None

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class JobWatch:
    """Puts every epoch into the driver's events once. Without the API server rounds go on with what was known last.

    A pod may outlive its job (`kubectl delete --cascade=orphan`); it does not obey another job of that name.
    """

    def __init__(self, access: Access, namespace: str, job: str, uid: str, events: "queue.SimpleQueue[Event]") -> None:
        self._kube = Blocking(access, names.COORDINATOR_FIELD_MANAGER)
        self._path, self._job, self._uid = _RLJOBS.path(namespace), job, uid
        self._events = events
        self._lock = threading.Lock()
        self._newest = Assignment()
        self._is_known = threading.Event()
        """Event that is set once there is an assignment."""
        self._addresses: Mapping[Component, Sequence[str]] = {}
        threading.Thread(target=self._run, name="job-watch", daemon=True).start()

    def newest(self) -> Assignment:
        with self._lock:
            return self._newest

    def first(self, limit_s: float) -> Assignment:
        """Return the newest, once there is one: the operator writes it before it creates the coordinator.

        Its epoch is 0 if nothing was heard of the job within the limit.
        """
        self._is_known.wait(limit_s)
        return self.newest()

    def address_of(self, component: Component, index: int) -> str | None:
        with self._lock:
            addresses = self._addresses.get(component, ())
            return addresses[index] or None if index < len(addresses) else None

    def close(self) -> None:
        # Ends the iteration in the other thread.
        self._kube.close()

    def _run(self) -> None:
        options: Any = {"fields": f"metadata.name={self._job}", "on_error": _log_failure}
        for news in self._kube.iterate(lambda client: Reflector(client, self._path, self._status, **options).changes()):
            for status in news.items if isinstance(news, Listed) else [news.item]:
                self._take_status(status)

    def _status(self, job: Json) -> Json | None:
        """Return the status of this job, and None for another one of its name."""
        return (job.get("status") or {}) if job["metadata"].get("uid") == self._uid else None

    def _take_status(self, status: Json) -> None:
        for what, take, written in (
            ("addresses", self._take_addresses, status),
            ("an assignment", self._take_assignment, status.get("assignment") or {}),
        ):
            try:
                take(written)
            except ValidationError as error:
                log.warning(f"the status has {what} of another version", error=sentence(error))

    def _take_addresses(self, written: Any) -> None:
        counts = {
            Component.REWARD: RewardPodCounts.model_validate(written.get("rewards") or {}),
            Component.ENVIRONMENT: ListeningPodCounts.model_validate(written.get("environments") or {}),
        }
        with self._lock:
            self._addresses = {component: tuple(one.addresses) for component, one in counts.items()}

    def _take_assignment(self, written: Any) -> None:
        assignment = Assignment.model_validate(written)
        with self._lock:
            if assignment.epoch <= self._newest.epoch:
                return
            self._newest = assignment
        self._is_known.set()
        self._events.put(AssignmentChanged(assignment))


def _log_failure(error: KubeError, silence_s: float) -> None:
    log.warning("watch of the RLJob broke", error=str(error), silence_s=round(silence_s, 1))
