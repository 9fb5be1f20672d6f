"""The pods of all jobs, as slim views: listed in pages, followed by a resumable watch, never stored whole."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import aiohttp
import structlog

from longshore.api import names
from longshore_operator.kube import ApiError, Gone, Kube, Unreadable
from longshore_operator.observed import PodView, pod_view

Key = tuple[str, str]
"""(namespace, name) of an RLJob."""

SELECTOR = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY},{names.LABEL_JOB}"
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 30.0
_REMEMBERED = 1024
_HEALTHY_STREAM_S = 5.0
"""A stream that lasted so long was no failure, even if nothing happened meanwhile."""

log = structlog.get_logger(__name__)


class PodInformer:
    """Keeps `PodView`s by job and calls `on_change(key)` when a job's pods change."""

    def __init__(
        self,
        kube: Kube,
        namespace: str | None,
        on_change: Callable[[Key], None],
        on_synced: Callable[[], None] = lambda: None,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._on_change = on_change
        self._on_synced = on_synced
        self._sorted: dict[Key, tuple[PodView, ...]] = {}
        """What `pods` answered, until it changes."""
        self._pods: dict[Key, dict[str, PodView]] = {}
        self._created: dict[tuple[Key, str], str] = {}
        """uid of pods that were created here and that the watch has not told of."""
        self._gone: deque[str] = deque(maxlen=_REMEMBERED)
        """uids of pods that were deleted lately."""
        self.last_contact_s = time.monotonic()
        """Monotonic time of the last answer of the API server."""

    def pods(self, key: Key) -> tuple[PodView, ...]:
        """Pods of a job, in a stable order."""
        answer = self._sorted.get(key)
        if answer is None:
            found = self._pods.get(key)
            if not found:
                return ()
            answer = self._sorted[key] = tuple(sorted(found.values(), key=lambda pod: (pod.component, pod.index)))
        return answer

    def mark_created(self, key: Key, pod: dict[str, Any]) -> None:
        """A pod was created: the view has it before the watch tells, and takes no older news of that name."""
        view = pod_view(pod)
        known = self._pods.get(key, {}).get(view.name)
        if view.uid in self._gone or (known is not None and known.uid == view.uid):
            return
        self._pods.setdefault(key, {})[view.name] = view
        self._sorted.pop(key, None)
        self._created[key, view.name] = view.uid

    def mark_deleting(self, key: Key, name: str, uid: str) -> None:
        """A delete was accepted: the view knows it before the watch tells."""
        pod = self._pods.get(key, {}).get(name)
        if pod is not None and pod.uid == uid:
            self._pods[key][name] = replace(pod, deleting=True)
            self._sorted.pop(key, None)

    async def run(self) -> None:
        """List and watch for ever; a broken stream is resumed where it broke, after pauses that grow."""
        pause_s = _FIRST_PAUSE_S
        version: str | None = None
        while True:
            began_s, heard = time.monotonic(), False
            try:
                if version is None:
                    version = await self._relist()
                    self._on_synced()
                async for event in self._kube.watch("Pod", self._namespace, SELECTOR, version):
                    version, heard = self.take(event), True
                self.last_contact_s = time.monotonic()
            except Gone:
                version = None
            except (ApiError, Unreadable, aiohttp.ClientError, TimeoutError, OSError) as error:
                log.warning("following pods was interrupted", error=repr(error))
            if heard or time.monotonic() - began_s > _HEALTHY_STREAM_S:
                pause_s = _FIRST_PAUSE_S
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    async def _relist(self) -> str:
        views: dict[Key, dict[str, PodView]] = {}
        version = ""
        async for page in self._kube.pages("Pod", self._namespace, SELECTOR):
            for view in _views(page.get("items") or ()):
                views.setdefault((view.namespace, view.job), {})[view.name] = view
            version = str(page["metadata"]["resourceVersion"])
        self.last_contact_s = time.monotonic()
        self._created.clear()
        changed = self._pods.keys() | views.keys()
        self._pods = views
        self._sorted.clear()
        for key in changed:
            self._on_change(key)
        return version

    def take(self, event: dict[str, Any]) -> str:
        """Apply one watch event; returns the version to resume from."""
        self.last_contact_s = time.monotonic()
        version = str(event["object"]["metadata"]["resourceVersion"])
        if event["type"] == "BOOKMARK":
            return version
        for view in _views([event["object"]]):
            key = (view.namespace, view.job)
            if self._created.get((key, view.name), view.uid) != view.uid:
                continue  # Of an earlier pod of this name.
            self._created.pop((key, view.name), None)
            self._sorted.pop(key, None)
            siblings = self._pods.setdefault(key, {})
            known = siblings.get(view.name)
            if event["type"] == "DELETED":
                self._gone.append(view.uid)
                if known is not None and known.uid == view.uid:
                    del siblings[view.name]
                if not siblings:
                    del self._pods[key]
            else:
                # A delete that was accepted is never taken back by an older event on its way.
                leaving = known is not None and known.uid == view.uid and known.deleting
                view = replace(view, deleting=view.deleting or leaving)
                siblings[view.name] = view
            if event["type"] == "DELETED" or known != view:
                self._on_change(key)
        return version


def _views(pods: Iterable[dict[str, Any]]) -> Iterable[PodView]:
    for pod in pods:
        try:
            yield pod_view(pod)
        except (KeyError, ValueError) as error:
            log.warning("a pod carries damaged labels", pod=pod["metadata"].get("name"), error=repr(error))
