"""Main program of an environment pod: runs the episodes of one environment, which it alone knows (`pod_protocol`)."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import structlog
from aiohttp import WSCloseCode, WSMsgType, web

from longshore.api import contract
from longshore.api.environment import Environment, ServerContainer
from longshore_runtime.environments import own_server, pod_protocol
from longshore_runtime.environments.host import EnvironmentHost
from longshore_runtime.environments.processes import Template, remove_left_directories
from longshore_runtime.rewards.captured_log import CapturedLog
from longshore_runtime.rewards.fork_server import allow_many_files
from longshore_runtime.rewards.transports.token_server import TokenServer, new_socket
from longshore_runtime.settings import Settings

log = structlog.get_logger()

MAX_HOSTS: Final = 2
"""Most connections with episodes at a time: that of a predecessor may not have ended yet."""
SERVER_LIMIT_S: Final = 900.0
"""Seconds for which the server of a pod may be down: the longest pause of the kubelet between two starts, 5 minutes,
and 10 minutes for a start."""


def run_environment(settings: Settings) -> int:
    """Serve until the pod is asked to stop; returns the exit status of the contract."""
    environment = Environment.model_validate_json(Path(os.environ[contract.ENV_ENVIRONMENT]).read_bytes())
    token = Path(os.environ[contract.ENV_ENVIRONMENT_TOKEN]).read_text(encoding="utf-8").strip()
    allow_many_files()  # Each episode takes four.
    remove_left_directories()
    return EnvironmentServer([environment], token).run(settings, contract.ENVIRONMENT_PORT)


class EnvironmentServer(TokenServer):
    """Server with the episodes of each connection.

    If episodes are sessions of a server in the pod, nobody is let in while it is down: they begin in other pods. A pod
    whose server stays down ends. Its successor has empty directories, and the job fails if no pod has a server.
    """

    def __init__(self, environments: Sequence[Environment], token: str, captured: CapturedLog | None = None) -> None:
        """Prepare the server; `captured` is the log of the pod."""
        super().__init__(token, captured)
        self._templates = {one.name: Template(one) for one in environments}
        self._servers = {one.name: one.server for one in environments if one.server is not None}
        self._num_hosts = 0
        """Number of connections that have episodes."""

    def _routes(self) -> Sequence[web.RouteDef]:
        return [web.get(pod_protocol.PATH, self._episodes)]

    async def _serve(self, host: str, port: int) -> tuple[int, str]:
        watching = [asyncio.create_task(self._break_without(*one)) for one in self._servers.items()]
        try:
            return await super()._serve(host, port)
        finally:
            for one in watching:
                one.cancel()

    async def _break_without(self, environment: str, server: ServerContainer) -> None:
        """End the pod if its server stays down."""
        try:
            while True:
                async with asyncio.timeout(SERVER_LIMIT_S):
                    await own_server.wait_until(server, up=True)
                await own_server.wait_until(server, up=False)
        except TimeoutError:
            self._break(
                f"environments[{environment}].server: nothing has listened at port {server.port} for "
                f"{SERVER_LIMIT_S:g} s; read the log of container {contract.SERVER_CONTAINER}, and correct image, "
                "command or port"
            )

    async def _end(self) -> None:
        await asyncio.gather(*(template.close() for template in self._templates.values()))

    async def _health(self, request: web.Request) -> web.Response:
        await self._require_servers()
        return await super()._health(request)

    async def _require_servers(self) -> None:
        for server in self._servers.values():
            if not await own_server.is_up(server):
                raise web.HTTPServiceUnavailable(text=f"the server does not listen at port {server.port}\n")

    @contextlib.asynccontextmanager
    async def _until_a_server_is_down(self, socket: web.WebSocketResponse) -> AsyncIterator[None]:
        """Close a connection as soon as its episodes have no server any more."""

        async def close_without(server: ServerContainer) -> None:
            await own_server.wait_until(server, up=False)
            log.error("the server of the environment is down", port=server.port)
            await socket.close(code=WSCloseCode.TRY_AGAIN_LATER)

        watching = [asyncio.create_task(close_without(server)) for server in self._servers.values()]
        try:
            yield
        finally:
            for one in watching:
                one.cancel()

    async def _episodes(self, request: web.Request) -> web.WebSocketResponse:
        """Serve the episodes of a connection, which end with it."""
        self._require_token(request)
        await self._require_servers()
        if self._num_hosts >= MAX_HOSTS:
            raise web.HTTPServiceUnavailable(text="other connections have episodes")
        socket = new_socket(pod_protocol.MAX_MESSAGE_BYTES)
        host = EnvironmentHost(self._templates, socket.send_bytes)
        self._num_hosts += 1
        try:
            async with self._connection(request, socket), self._until_a_server_is_down(socket):
                async for message in socket:
                    if message.type is WSMsgType.BINARY:
                        host.receive(message.data)
        finally:
            host.close()
            self._num_hosts -= 1
        return socket
