"""The kopf shell: it watches RLJobs and wakes the controller; it stores nothing in them."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import kopf

from longshore.api import names
from longshore_operator.kube import (
    CONNECT_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    WATCH_CLIENT_TIMEOUT_S,
    WATCH_SERVER_TIMEOUT_S,
)
from longshore_operator.kubeconfig import Access
from longshore_operator.tasks import until_first_ends

_MAX_WORKERS = 256
_WORKER_IDLE_S = 0.5


def settings() -> kopf.OperatorSettings:
    """No annotations, no finalizers, no event posting, no peering, no scanning of namespaces and CRDs."""
    result = kopf.OperatorSettings()
    result.posting.enabled = False
    result.posting.level = logging.WARNING
    result.peering.standalone = True
    result.scanning.disabled = True
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


def registry(access: Access, wake: Callable[[tuple[str, str], str], None]) -> kopf.OperatorRegistry:
    """Handlers: how to log in, and whom to wake for an event of an RLJob."""
    result = kopf.OperatorRegistry()

    @kopf.on.login(registry=result)
    def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(
            server=access.server,
            ca_data=access.ca,
            insecure=access.insecure,
            token=access.bearer_token(),
            certificate_data=access.certificate,
            private_key_data=access.key,
            username=access.username,
            password=access.password,
            default_namespace=access.namespace,
        )

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=result)
    async def on_rljob(meta: Mapping[str, Any], **_: Any) -> None:
        wake((meta["namespace"], meta["name"]), meta["resourceVersion"])

    return result


async def watch_jobs(
    access: Access, namespace: str | None, wake: Callable[[tuple[str, str], str], None], stop: asyncio.Event
) -> None:
    """Watch RLJobs of a namespace, or of all, until `stop` is set.

    kopf's own main loop would take every task of the process for its own and wait for them; so its tasks are run here.
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
