"""Pretend pods without nodes: each is bound and runs at once, and ends when it is deleted.

This goes on whatever the API server does.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

from longshore.api import names
from longshore_kube.client import Client, Patch
from longshore_kube.errors import ApiError, KubeError
from longshore_kube.reflector import Changed, Listed, Reflector
from longshore_kube.resources import PODS, Json

_PAUSE_S: Final = 0.2
_READY: Final = {
    "phase": "Running",
    "podIP": "10.0.0.1",
    "conditions": [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")],
}
_SUCCEEDED: Final = {
    "phase": "Succeeded",
    "containerStatuses": [{"name": "longshore", "state": {"terminated": {"exitCode": 0}}}],
}


@asynccontextmanager
async def background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run all coroutines until the end of the block."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class PretendKubelet:
    """Flips statuses of pods. `pods` has every pod that there ever was, `running` the uids of those that run."""

    def __init__(self, client: Client, num_workers: int = 8, labels: str = names.LABEL_JOB) -> None:
        """Prepare to look after the pods with these `labels`."""
        self._client = client
        self._num_workers = num_workers
        self._labels = labels
        self._queue: asyncio.Queue[Json] = asyncio.Queue()
        self._changed = asyncio.Event()
        self.pods: dict[str, tuple[str, str]] = {}
        """Namespace and name of pods, by uid."""
        self.running: set[str] = set()
        self._started: set[str] = set()

    async def run(self) -> None:
        """Follow the pods and write their statuses for ever."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._num_workers):
                group.create_task(self._work())
            followed = Reflector(self._client, PODS.path(None), lambda pod: pod, labels=self._labels)
            async for news in followed.changes():
                for change in [Changed("ADDED", one) for one in news.items] if isinstance(news, Listed) else [news]:
                    self._note(change.kind, change.item)
                    if change.kind != "DELETED":
                        self._queue.put_nowait(change.item)

    async def until_running(self, num_pods: int) -> None:
        """Wait until so many pods run at once."""
        while len(self.running) < num_pods:
            self._changed.clear()
            await self._changed.wait()

    async def succeed(self, namespace: str, job: str) -> None:
        """Let the coordinator of a job end well."""
        await self._until_done(self._status, namespace, names.coordinator_pod(job), _SUCCEEDED)

    def _note(self, kind: str, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        self.pods[uid] = pod["metadata"]["namespace"], pod["metadata"]["name"]
        is_running = kind != "DELETED" and (pod.get("status") or {}).get("phase") == "Running"
        (self.running.add if is_running else self.running.discard)(uid)
        self._changed.set()

    async def _work(self) -> None:
        while True:
            metadata = (pod := await self._queue.get())["metadata"]
            place = metadata["namespace"], metadata["name"]
            if "deletionTimestamp" in metadata:
                await self._until_done(self._remove, *place)
            elif metadata["uid"] not in self._started and not (pod.get("status") or {}).get("podIP"):
                self._started.add(metadata["uid"])
                if not pod["spec"].get("nodeName"):
                    await self._until_done(self._bind, *place)
                await self._until_done(self._status, *place, _READY)

    async def _until_done(self, act: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Act again until the API server has answered; an answer that refuses is an answer too."""
        while True:
            try:
                await act(*arguments)
            except KubeError as error:
                if not isinstance(error, ApiError) or error.code == 429 or error.code >= 500:
                    await asyncio.sleep(_PAUSE_S)
                    continue
            return

    async def _bind(self, namespace: str, name: str) -> None:
        target = {"metadata": {"name": name}, "target": {"name": "node-0"}}
        binding = {"apiVersion": "v1", "kind": "Binding"} | target
        await self._client.request("POST", PODS.path(namespace, name, "binding"), body=binding)

    async def _status(self, namespace: str, name: str, status: Json) -> None:
        await self._client.patch(PODS, name, namespace, {"status": status}, kind=Patch.MERGE, subresource="status")

    async def _remove(self, namespace: str, name: str) -> None:
        await self._client.delete(PODS, name, namespace, grace_s=0)
