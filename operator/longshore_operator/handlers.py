"""The kopf shell: it watches RLJobs and wakes the controller; it stores nothing in them."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import kopf
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
from longshore_kube.session import open_session
from longshore_operator.kube import REQUEST_TIMEOUT_S
from longshore_operator.tasks import until_first_ends

_MAX_WORKERS: Final = 256
_WORKER_IDLE_S: Final = 0.5
_NO_ITEMS: Final = b'"items":null}'
"""End of an empty list of metadata. kopf fails at `null` and needs an empty list."""
_CHUNK_SIZE: Final = 16
"""Jobs per part of a list. The metadata of each can have a megabyte, and Python objects take ten times that."""


@dataclass(frozen=True, slots=True)
class JobNews:
    """News of a job from the watch."""

    uid: str
    resource_version: str
    generation: int
    is_deleted: bool = False
    is_listed: bool = False
    """Whether the job was only listed, so that it is not known whether it changed."""


Wake = Callable[[tuple[str, str], JobNews], None]


def settings() -> kopf.OperatorSettings:
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


def registry(access: Access, wake: Wake) -> kopf.OperatorRegistry:
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


async def rljob_session(access: Access) -> aiohttp.ClientSession:
    """Open a session that lists and watches RLJobs without specs and statuses, which waking does not need."""
    return await open_session(access, names.OPERATOR_FIELD_MANAGER, middlewares=[_metadata_only])


async def _metadata_only(request: aiohttp.ClientRequest, handler: ClientHandlerType) -> aiohttp.ClientResponse:
    """Ask for metadata only, of lists and of watches by different headers; discovery and the like stay as they are."""
    if not request.url.path.endswith(f"/{names.PLURAL}"):
        return await handler(request)
    if "watch" in request.url.query:
        request.headers["Accept"] = METADATA_TYPE
        return await handler(request)
    request.headers["Accept"] = METADATA_LIST_TYPE
    response = await handler(request)
    body = await response.read()
    if body.rstrip().endswith(_NO_ITEMS):
        response._body = body.rstrip().removesuffix(_NO_ITEMS) + b'"items":[]}'
    return response


async def watch_jobs(access: Access, namespace: str | None, wake: Wake, stop: asyncio.Event) -> None:
    """Watch RLJobs of a namespace, or of all, until `stop` is set.

    kopf's own main loop would wait for every task of the process, so only its tasks are run here.
    """
    tasks = await kopf.spawn_tasks(
        registry=registry(access, wake),
        settings=settings(),
        clusterwide=namespace is None,
        namespaces=[] if namespace is None else [namespace],
        standalone=True,
        stop_flag=stop,
    )
    await until_first_ends(tasks)
