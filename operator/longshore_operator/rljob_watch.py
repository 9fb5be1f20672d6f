"""Report RLJobs that exist or change: kopf watches them, and lists find what its watch misses.

kopf wakes the controller and stores nothing in jobs. Only this module imports it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import kopf
import structlog
from aiohttp.client_middlewares import ClientHandlerType

from longshore.api import names
from longshore_kube.access import Access
from longshore_kube.client import (
    CONNECT_TIMEOUT_S,
    METADATA_LIST_TYPE,
    METADATA_TYPE,
    WATCH_CLIENT_TIMEOUT_S,
    WATCH_SERVER_TIMEOUT_S,
)
from longshore_kube.errors import KubeError
from longshore_kube.resources import group_path
from longshore_kube.session import open_session
from longshore_operator.identity import Key
from longshore_operator.kube import REQUEST_TIMEOUT_S, KubeClient

_MAX_WORKERS: Final = 256
_WORKER_IDLE_S: Final = 0.5
_CHUNK_SIZE: Final = 16
"""Jobs per part of a list. The metadata of each can have a megabyte, and Python objects take ten times that."""
_DELETIONS_EVERY_S: Final = 600.0
_DEFINITION_PAUSE_S: Final = 5.0
"""Seconds between two questions whether RLJobs are served."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class JobNews:
    """News of a job from the watch."""

    uid: str
    resource_version: str
    generation: int
    is_deleted: bool = False
    is_listed: bool = False
    """Whether the job was only listed, so that it is not known whether it changed."""


Wake = Callable[[Key, JobNews], None]


def _settings() -> kopf.OperatorSettings:
    """Switch off annotations, finalizers, event posting, peering, and scanning of namespaces and CRDs."""
    result = kopf.OperatorSettings()
    result.posting.enabled = False
    result.posting.level = logging.WARNING
    result.peering.standalone = True
    result.scanning.disabled = True
    result.watching.chunk_size = _CHUNK_SIZE
    result.watching.server_timeout = WATCH_SERVER_TIMEOUT_S
    result.watching.client_timeout = WATCH_CLIENT_TIMEOUT_S
    result.watching.connect_timeout = CONNECT_TIMEOUT_S
    # Bookmarks come about once a minute; a stream that is silent for longer than the server's limit is dead.
    result.watching.inactivity_timeout = WATCH_CLIENT_TIMEOUT_S
    result.networking.connect_timeout = CONNECT_TIMEOUT_S
    result.networking.request_timeout = REQUEST_TIMEOUT_S
    result.queueing.worker_limit = _MAX_WORKERS
    result.queueing.idle_timeout = _WORKER_IDLE_S
    return result


def _registry(access: Access, wake: Wake) -> kopf.OperatorRegistry:
    """Register the handlers: how to log in, and what to wake for an event of an RLJob."""
    result = kopf.OperatorRegistry()

    @kopf.on.login(registry=result)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(
            server=access.server, default_namespace=access.namespace, aiohttp_session=await rljob_session(access)
        )

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=result)
    async def on_rljob(type: str | None, meta: Mapping[str, Any], **_: Any) -> None:
        generation = meta.get("generation", 0)
        news = JobNews(meta["uid"], meta["resourceVersion"], generation, type == "DELETED", type is None)
        wake((meta["namespace"], meta["name"]), news)

    return result


class _Response(aiohttp.ClientResponse):
    """Response in which an empty list of metadata, whose items the API server writes as null, has items for kopf."""

    async def json(self, **options: Any) -> Any:
        """Return the content, with a list where the items are null."""
        content = await super().json(**options)
        if isinstance(content, dict) and content.get("items", ()) is None:
            content["items"] = []
        return content


async def rljob_session(access: Access) -> aiohttp.ClientSession:
    """Open a session that lists and watches RLJobs without specs and statuses, which waking does not need."""
    return await open_session(
        access, names.OPERATOR_FIELD_MANAGER, middlewares=[_metadata_only], response_class=_Response
    )


async def _metadata_only(request: aiohttp.ClientRequest, handler: ClientHandlerType) -> aiohttp.ClientResponse:
    """Ask for metadata only, of lists and of watches by different headers; discovery stays as it is."""
    if request.url.path.endswith(f"/{names.PLURAL}"):
        request.headers["Accept"] = METADATA_TYPE if "watch" in request.url.query else METADATA_LIST_TYPE
    return await handler(request)


async def watch_jobs(kube: KubeClient, namespace: str | None, wake: Wake, stop: asyncio.Event) -> None:
    """Watch RLJobs of a namespace, or of all, from the time they are served until `stop` is set.

    kopf's own main loop would wait for every task of the process, so only its tasks are run here.
    """
    await until_served(kube)
    tasks = await kopf.spawn_tasks(
        registry=_registry(kube.client.access, wake),
        settings=_settings(),
        clusterwide=namespace is None,
        namespaces=[] if namespace is None else [namespace],
        standalone=True,
        stop_flag=stop,
    )
    await until_first_ends(tasks)


async def until_served(kube: KubeClient, pause_s: float = _DEFINITION_PAUSE_S) -> None:
    """Wait until the API server serves RLJobs: a watch that begins before that never sees any."""
    while (why := await _why_not_served(kube)) is not None:
        log.warning(
            "RLJobs are not served; install their definition with the chart (crd.install: true), or with "
            "`kubectl apply --server-side -f crds/longshore.dev_rljobs.yaml`",
            error=why,
        )
        await asyncio.sleep(pause_s)


async def _why_not_served(kube: KubeClient) -> str | None:
    try:
        found = await kube.client.request("GET", group_path(names.API_VERSION))
    except KubeError as error:
        return str(error)
    served = any(resource.get("name") == names.PLURAL for resource in found.get("resources") or ())
    return None if served else f"{names.API_VERSION} has no {names.PLURAL}"


async def list_jobs(kube: KubeClient, namespace: str | None) -> AsyncIterator[list[Key]]:
    """Yield the jobs that exist, page by page."""
    async for page in kube.client.pages(kube.path(names.KIND, namespace), metadata_only=True):
        found = (item["metadata"] for item in page.get("items") or ())
        yield [(metadata["namespace"], metadata["name"]) for metadata in found]


async def find_deletions(
    kube: KubeClient, namespace: str | None, known: Collection[Key], wake: Callable[[Key], None]
) -> None:
    """Wake those of the known jobs that do not exist any more, every few minutes; never return.

    kopf misses deletions when it has to list jobs again. Nothing else tells of them if the job had ended before.
    """
    while True:
        await asyncio.sleep(_DELETIONS_EVERY_S)
        missing = set(known)
        try:
            async for page in list_jobs(kube, namespace):
                missing.difference_update(page)
        except KubeError as error:
            log.warning("jobs could not be listed; deletions are looked for later", error=repr(error))
            continue
        for key in sorted(missing):
            wake(key)


async def until_first_ends(parts: Iterable[Coroutine[Any, Any, object] | asyncio.Task[Any]]) -> None:
    """Run parts of a process together; when one ends, stop the others and let its error through."""
    tasks = [part if isinstance(part, asyncio.Task) else asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
