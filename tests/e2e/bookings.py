"""Which jobs hold GPUs, from every event of their pods."""

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kubernetes import client, watch

from tests.contract.operator.harness import GPU

_WATCH_S = 2
_ENDED = ("Succeeded", "Failed")
Key = tuple[str, str]
"""Namespace and name of a job."""


@dataclass(frozen=True)
class Gang:
    """GPUs that a job holds from its first pod to its last one, and the queues that they belong to."""

    queues: tuple[str, ...]
    gpus: int
    """Pods of an elastic job may hold more."""


class Bookings:
    """Follows the pods of jobs for as long as the context lasts, and notes when a queue was booked twice.

    A pod counts from its creation to its end, whether or not it has a node, and a job with any pod counts as a whole.
    """

    def __init__(self, core: client.CoreV1Api, gangs: Mapping[Key, Gang], quotas: Mapping[str, int]) -> None:
        self._core = core
        self._gangs = gangs
        self._quotas = quotas
        self._pods: dict[str, tuple[Key, int]] = {}
        """Jobs and GPUs of the pods that have not ended, by uid."""
        self.began: list[tuple[str, int]] = []
        """Names and attempts of jobs, in the order of their first pods."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.peak: dict[str, int] = defaultdict(int)
        """GPUs that were held at once, by queue."""
        self.double: list[str] = []
        """What was held when more was held than there is."""

    def __enter__(self) -> "Bookings":
        self._version = self._core.list_pod_for_all_namespaces(limit=1).metadata.resource_version
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread.is_alive(), "no event was missed"
        self._stop.set()
        self._thread.join(30)

    def holders(self) -> set[Key]:
        """Jobs that have pods."""
        return {job for job, _ in self._pods.values()}

    def _run(self) -> None:
        while not self._stop.is_set():
            events = watch.Watch().stream(
                self._core.list_pod_for_all_namespaces,
                label_selector="longshore.dev/job",
                resource_version=self._version,
                timeout_seconds=_WATCH_S,
            )
            for event in events:
                self._take(event["type"], event["object"])

    def _take(self, kind: str, pod: Any) -> None:
        metadata = pod.metadata
        self._version = metadata.resource_version
        key = (metadata.namespace, metadata.labels["longshore.dev/job"])
        if key not in self._gangs:
            return
        attempt = metadata.labels["longshore.dev/job"], int(metadata.labels["longshore.dev/attempt"])
        if attempt not in self.began:
            self.began.append(attempt)
        others = {uid: pod for uid, pod in self._pods.items() if uid != metadata.uid}
        has_ended = kind == "DELETED" or pod.status.phase in _ENDED
        self._pods = others if has_ended else {**others, metadata.uid: (key, _requested(pod))}
        self._count(f"{kind} {metadata.name}")

    def _count(self, event: str) -> None:
        held: dict[str, int] = defaultdict(int)
        for job in self.holders():
            gang, requested = self._gangs[job], sum(gpus for of, gpus in self._pods.values() if of == job)
            for queue in gang.queues:
                held[queue] += max(gang.gpus, requested)
        for queue, gpus in held.items():
            self.peak[queue] = max(self.peak[queue], gpus)
            if gpus > self._quotas[queue]:
                self.double.append(f"after {event}: {gpus} in {queue}, held by {sorted(self.holders())}")


def _requested(pod: Any) -> int:
    requests = [one.resources.requests or {} for one in pod.spec.containers if one.resources]
    return sum(int(one.get(GPU, 0)) for one in requests)
