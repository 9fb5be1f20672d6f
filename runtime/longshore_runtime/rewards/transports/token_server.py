"""Server of a pod that runs code of models: whoever has the token of the pod is let in, at its only port.

Such a pod is no member of the job's Ray cluster. Anyone who owns it owns that token, and nothing else of the job.
"""

import asyncio
import contextlib
import hmac
import signal
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Final

import structlog
from aiohttp import WSCloseCode, web

from longshore.api.contract import ExitCode
from longshore_runtime.errors import ASKED_TO_STOP
from longshore_runtime.rewards.captured_log import CapturedLog
from longshore_runtime.rewards.transports import pod_protocol
from longshore_runtime.rewards.transports.pod_protocol import BadMessage, Hello
from longshore_runtime.settings import Settings

log = structlog.get_logger()

CRASHED: Final = 1


class TokenServer(ABC):
    """Server with `/health` for everybody, and the log of the pod and WebSockets for those who have the token."""

    def __init__(self, token: str, captured: CapturedLog | None = None) -> None:
        """Prepare the server; `captured` is the log of the pod."""
        assert token, "everybody would be let in"
        self._is_broken = asyncio.Event()
        self._problem = ""
        """Why the pod has to end by itself."""
        self._name = str(uuid.uuid4())
        self._captured = captured or CapturedLog()
        self._token = f"Bearer {token}".encode()
        self._sockets: set[web.WebSocketResponse] = set()

    def run(self, settings: Settings, port: int) -> int:
        """Serve until the pod is asked to stop, or breaks; returns the exit status of the contract."""
        with self._captured.capturing():
            code, reason = asyncio.run(self._serve(settings.pod_ip, port))
            log.info("the pod ends", code=code, reason=reason)
        settings.report_reason(reason)
        return code

    @contextlib.asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Serve while the block runs; yields the port."""
        application = web.Application()
        application.router.add_get("/health", self._health)
        application.router.add_get(pod_protocol.LOG_PATH, self._log)
        application.router.add_routes(self._routes())
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port, reuse_address=True)
            await site.start()
            yield int(runner.addresses[0][1])
        finally:
            for socket in list(self._sockets):
                await socket.close(code=WSCloseCode.GOING_AWAY)
            await runner.cleanup()
            await self._end()

    @abstractmethod
    def _routes(self) -> Sequence[web.RouteDef]:
        """Return the paths of the WebSockets, whose handlers require the token."""

    @abstractmethod
    async def _end(self) -> None:
        """End what connections have left behind."""

    def _break(self, problem: str) -> None:
        """Let the pod end by itself, so that another one takes its place."""
        self._problem = problem
        self._is_broken.set()

    async def _serve(self, host: str, port: int) -> tuple[int, str]:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with self.listening(host, port):
            log.info("the pod serves", port=port)
            stopping, breaking = asyncio.create_task(stop.wait()), asyncio.create_task(self._is_broken.wait())
            done, _ = await asyncio.wait({stopping, breaking}, return_when=asyncio.FIRST_COMPLETED)
            if stopping in done:
                return int(ExitCode.INTERRUPTED), ASKED_TO_STOP
            return CRASHED, self._problem

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="ready\n")

    async def _log(self, request: web.Request) -> web.Response:
        """Answer with what was written to the log since the last request."""
        self._require_token(request)
        return web.Response(body=self._captured.take())

    def _require_token(self, request: web.Request) -> None:
        if not hmac.compare_digest(authorization_of(request), self._token):
            raise web.HTTPUnauthorized

    @contextlib.asynccontextmanager
    async def _connection(self, request: web.Request, socket: web.WebSocketResponse) -> AsyncIterator[None]:
        """Open a connection and say which pod this is; one with a message that cannot be read is closed."""
        await socket.prepare(request)
        self._sockets.add(socket)
        try:
            await socket.send_bytes(pod_protocol.encode(Hello(pod=self._name)))
            yield
        except BadMessage as error:
            await refuse(socket, error)
        finally:
            self._sockets.discard(socket)


def new_socket(max_bytes: int) -> web.WebSocketResponse:
    """Return a WebSocket that takes messages of at most this size."""
    return web.WebSocketResponse(heartbeat=pod_protocol.HEARTBEAT_S, max_msg_size=max_bytes, compress=False)


async def refuse(socket: web.WebSocketResponse, error: BadMessage) -> None:
    """Close a connection for a message that cannot be read."""
    log.error("a request cannot be read", reason=str(error))
    await socket.close(code=WSCloseCode.POLICY_VIOLATION)


def authorization_of(request: web.Request) -> bytes:
    """Return what a request says of who sends it, whatever its bytes are."""
    return request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
