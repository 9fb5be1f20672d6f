"""Reads from Kueue: the Workload of a job with what a decision needs besides it, and which Workloads change."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import structlog

from longshore.api import names
from longshore.api.rljob import RLJob
from longshore_kube.errors import KubeError
from longshore_kube.reflector import Changed, Listed, Reflector
from longshore_operator.config import OperatorConfig
from longshore_operator.identity import Key
from longshore_operator.kube import KubeClient
from longshore_operator.kueue.view import (
    GROUP,
    LABEL_PREBUILT,
    LABEL_PRIORITY_CLASS,
    LABEL_QUEUE,
    VERSIONS,
    KueueView,
    Object,
    Priority,
    flavor_names,
)
from longshore_operator.kueue.workload import workload, workload_name
from longshore_operator.kueue.workload_steps import too_many_pod_sets, unusable
from longshore_operator.template_rules import refusal

_SELECTOR = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY},{names.LABEL_JOB}"
_REMEMBERED_S = 30.0
"""Flavors, priority classes and the served version change rarely."""
_PAUSE_S = 5.0

log = structlog.get_logger(__name__)


def queue_of(job: RLJob) -> str | None:
    """Return the LocalQueue of a job, by its label.

    A job that was in a queue stays in it, so that no quota is left behind.
    """
    label = (job.metadata.get("labels") or {}).get(LABEL_QUEUE)
    recorded = job.status.admission.queue if job.status.admission is not None else ""
    return label or recorded or None


class KueueClient:
    """Reads Workloads and what belongs to them; `wake(key)` is called when the Workload of a job changes."""

    def __init__(
        self, kube: KubeClient, config: OperatorConfig, namespace: str | None, wake: Callable[[Key], None]
    ) -> None:
        self._kube = kube
        self._config = config
        self._namespace = namespace
        self._wake = wake
        self._known: dict[tuple[str, str], tuple[float, Object | None]] = {}
        """Objects of the cluster by kind and name, with the time until which they are not read again."""
        self._followed: set[Key] = set()
        """Jobs whose Workloads were seen since the newest list, or are in it."""
        self._served: tuple[float, tuple[str, ...]] = (0.0, ())
        """Served versions of Kueue's API, with the time until which they are not read again."""

    async def read(self, job: RLJob) -> KueueView | None:
        """Return the state of Kueue for a job; None: the job is in no queue."""
        queue = queue_of(job)
        if queue is None and job.spec.runs_elsewhere:
            return KueueView("", mistake=f"spec.managedBy is {job.spec.managed_by}: name its queue by {LABEL_QUEUE}")
        if queue is None:
            return None
        if not self._config.kueue:
            return KueueView(queue, mistake=f"the operator was installed without Kueue: remove the label {LABEL_QUEUE}")
        version = await self._version()
        if version is None:
            missing = f"Kueue is not installed in this cluster: install it, or remove the label {LABEL_QUEUE}"
            return KueueView(queue, mistake=missing)
        name, is_prebuilt = workload_name(job), LABEL_PREBUILT in (job.metadata.get("labels") or {})
        found = await self._kube.get(f"Workload@{version}", job.metadata["namespace"], name)
        # A prebuilt Workload has the priority that it was made with.
        priority, mistake = (None, "") if is_prebuilt else await self._priority(job, version)
        view = KueueView(queue, version, found, priority, mistake, is_prebuilt=is_prebuilt)
        if not mistake and (found is None or is_prebuilt):
            view = replace(view, mistake=self._refusal(job, view))
        flavors = {}
        for flavor in sorted(flavor_names(found)) if found is not None else ():
            read = await self._cached(f"ResourceFlavor@{version}", flavor)
            flavors[flavor] = (read or {}).get("spec") or {}
        return replace(view, flavors=flavors)

    async def read_unreadable(self, key: Key, queue: str) -> KueueView:
        """Return the state of Kueue for a job of which only the status can be read."""
        version = await self._version()
        found = await self._kube.get(f"Workload@{version}", key[0], names.workload(key[1])) if version else None
        return KueueView(queue, version, found)

    async def run(self) -> None:
        """Follow Workloads for ever, from the time Kueue is installed and in the version that it serves."""
        while True:
            try:
                version = await self._version() if self._config.kueue else None
                if version is not None:
                    await self._follow(f"Workload@{version}")
            except KubeError as error:
                log.warning("following Workloads was interrupted", error=str(error))
            await asyncio.sleep(_PAUSE_S)

    async def _follow(self, kind: str) -> None:
        path = self._kube.path(kind, self._namespace)
        reflector = Reflector(self._kube.client, path, _job, labels=_SELECTOR, metadata_only=True, on_error=_give_up)
        async for news in reflector.changes():
            for key in self._concerned(news):
                self._wake(key)

    def _concerned(self, news: Listed[Key] | Changed[Key]) -> list[Key]:
        """Return jobs whose Workloads may have changed. A list concerns those, too, that it has no more."""
        if isinstance(news, Changed):
            self._followed.add(news.item)
            return [news.item]
        before, self._followed = self._followed, set(news.items)
        return sorted(before | self._followed)

    async def _version(self) -> str | None:
        """Return the best version that is served."""
        now_s = time.monotonic()
        until_s, served = self._served
        if now_s >= until_s:
            served = await self._kube.served_versions(GROUP)
            self._served = (now_s + _REMEMBERED_S, served)
        return next((version for version in VERSIONS if version in served), None)

    async def _priority(self, job: RLJob, version: str) -> tuple[Priority | None, str]:
        """Return class and value of a job.

        The class is Kueue's that its label names, else Kubernetes' that the template of its workers names.
        """
        name = (job.metadata.get("labels") or {}).get(LABEL_PRIORITY_CLASS)
        if name:
            found = await self._cached(f"WorkloadPriorityClass@{version}", name)
            if found is None:
                problem = (
                    f"there is no WorkloadPriorityClass {name}: correct or remove the label {LABEL_PRIORITY_CLASS}"
                )
                return None, problem
            return Priority(name, int(found["value"]), is_kueues=True), ""
        name = (job.spec.workers.template.get("spec") or {}).get("priorityClassName")
        found = await self._cached("PriorityClass", name) if isinstance(name, str) and name else None
        # A PriorityClass that does not exist is refused with the pods, by the API server.
        return (None, "") if found is None else (Priority(str(name), int(found["value"]), is_kueues=False), "")

    def _refusal(self, job: RLJob, view: KueueView) -> str:
        """Return why Kueue would refuse the Workload; empty: it would not."""
        if refusal(job.spec, self._config.allowed) is not None:
            return ""  # Such a job fails in this pass, without pods.
        if view.is_prebuilt:
            return unusable(job, self._config, view)
        return too_many_pod_sets(workload(job, self._config, view))

    async def _cached(self, kind: str, name: str) -> dict[str, Any] | None:
        now_s = time.monotonic()
        until_s, found = self._known.get((kind, name), (0.0, None))
        if now_s < until_s:
            return dict(found) if found is not None else None
        read = await self._kube.get(kind, "", name)
        if len(self._known) > 1024:
            self._known.clear()
        self._known[kind, name] = (now_s + _REMEMBERED_S, read)
        return read


def _job(found: Object) -> Key:
    metadata = found["metadata"]
    return metadata["namespace"], metadata["labels"][names.LABEL_JOB]


def _give_up(error: KubeError, silence_s: float) -> None:
    """Give up, so that the served version is determined again."""
    raise error
