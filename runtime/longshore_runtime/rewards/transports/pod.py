"""Connections to pods that run code of users and models: from the coordinator, which reads as from an attacker.

A thread of its own holds the connections to all pods of one component.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import structlog

from longshore.api.names import Component
from longshore_runtime.process.loop_thread import LoopThread
from longshore_runtime.rewards.scoring import WorkerDied
from longshore_runtime.rewards.transports import pod_protocol
from longshore_runtime.rewards.transports.pod_protocol import BadMessage
from longshore_runtime.settings import host_port

log = structlog.get_logger()

_CONNECT_LIMIT_S: Final = 5.0
"""Time limit of a connection: packets to the address of a lost pod may get no answer."""
_TICK_S: Final = 0.5
"""Seconds between two attempts to reach a pod."""

AddressOf = Callable[[int], str | None]
"""Function that returns a pod's IP address by its index, if it is known; called from another thread."""


@dataclass(frozen=True)
class ServingPods:
    """Pods of one component that the coordinator connects to."""

    component: Component
    count: int
    address_of: AddressOf
    token_of: Callable[[int], Path]
    """Function that returns the file with the bearer token for a pod, by its index."""
    port: int

    def authorization(self, pod: int) -> dict[str, str]:
        """Return the headers of a request to a pod."""
        return {"Authorization": f"Bearer {self.token_of(pod).read_text(encoding='utf-8').strip()}"}


class PodConnections:
    """The connections to the pods of one component, and the thread that holds them."""

    def __init__(self, pods: ServingPods) -> None:
        """Start the thread."""
        self.pods = pods
        self._thread = LoopThread(f"{pods.component}-pods")
        self.loop = self._thread.loop
        self._session: aiohttp.ClientSession | None = None
        self._reported: dict[int, str] = {}
        """Last reason why a pod did not answer, which all its workers share, by pod."""

    def close(self) -> None:
        """Close every connection."""
        self._thread.close(self._close())

    async def connect(
        self, pod: int, path: str = pod_protocol.PATH, max_bytes: int = pod_protocol.MAX_ANSWER_BYTES
    ) -> aiohttp.ClientWebSocketResponse:
        """Connect to the pod, without a time limit for its start; `max_bytes`: largest size of an answer."""
        while True:
            try:
                if (address := self.pods.address_of(pod)) is not None:
                    socket = await self._connect_to(pod, address, path, max_bytes)
                    self._reported.pop(pod, None)
                    return socket
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                # Its address may have another owner by now, who is asked no more than once a tick.
                failure = f"{type(error).__name__}: {error}"
                if self._reported.get(pod) != failure:
                    log.info(
                        f"the {self.pods.component} pod does not answer yet", pod=pod, address=address, reason=failure
                    )
                self._reported[pod] = failure
            await asyncio.sleep(_TICK_S)

    async def _connect_to(self, pod: int, address: str, path: str, max_bytes: int) -> aiohttp.ClientWebSocketResponse:
        session = self._session = self._session or new_session()
        async with asyncio.timeout(_CONNECT_LIMIT_S):
            return await session.ws_connect(
                f"http://{host_port(address, self.pods.port)}{path}",
                headers=self.pods.authorization(pod),
                heartbeat=pod_protocol.HEARTBEAT_S,
                max_msg_size=max_bytes,
                timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
            )

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.close()


def new_session() -> aiohttp.ClientSession:
    """Return a session that follows nobody elsewhere, keeps no cookies and uses no proxy."""
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_refuse_redirect)
    return aiohttp.ClientSession(
        trace_configs=[trace],
        cookie_jar=aiohttp.DummyCookieJar(),
        connector=aiohttp.TCPConnector(limit=0),
        trust_env=False,
    )


async def _refuse_redirect(*_: object) -> None:
    raise aiohttp.ClientError("it sends elsewhere")


async def received(socket: aiohttp.ClientWebSocketResponse) -> bytes:
    """Return the next message; raises WorkerDied or BadMessage."""
    message = await socket.receive()
    match message.type:
        case aiohttp.WSMsgType.BINARY:
            data: bytes = message.data
            return data
        case aiohttp.WSMsgType.TEXT:
            raise BadMessage("it is text")
        case aiohttp.WSMsgType.ERROR:
            raise WorkerDied(f"its connection broke ({socket.exception()})")
    raise WorkerDied("its pod closed the connection")
