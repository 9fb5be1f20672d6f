"""Main program of a reward pod: scores what the coordinator sends, and answers with numbers (`pod_protocol`).

It runs code that models wrote, so it is no member of the job's Ray cluster: it listens on one port, and anyone who owns
the pod owns a token with which that port can be asked, and nothing else of the job.
"""

import asyncio
import contextlib
import hmac
import os
import signal
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog
from aiohttp import WSCloseCode, WSMsgType, web

from longshore.api import contract
from longshore.api.contract import ExitCode
from longshore.api.environment import Environment
from longshore.api.spec import RLJobSpec
from longshore_runtime.environments import pod_protocol as environment_protocol
from longshore_runtime.environments.host import EnvironmentHost
from longshore_runtime.environments.processes import Template
from longshore_runtime.errors import ASKED_TO_STOP
from longshore_runtime.rewards.captured_log import CapturedLog
from longshore_runtime.rewards.fork_server import allow_many_files
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.transports import pod_protocol
from longshore_runtime.rewards.transports.pod_protocol import BadMessage, Begin, Hello, ScoreRequest
from longshore_runtime.rewards.transports.thread import ScoringThread
from longshore_runtime.settings import Settings
from longshore_runtime.storage import job_storage

log = structlog.get_logger()

CRASHED: Final = 1
MAX_HOSTS: Final = 2
"""Most connections with episodes at a time: that of a predecessor may not have ended yet."""
SPARE_WORKERS: Final = 4
"""Most workers at a time, as a multiple of their regular number: predecessors may not have ended yet."""
CLOSE_LIMIT_S: Final = 60.0
"""Seconds after which an abandoned worker that has not ended counts as hanging."""


def run_reward(settings: Settings) -> int:
    """Serve until the pod is asked to stop; returns the exit status of the contract."""
    spec = RLJobSpec.model_validate_json(settings.config.read_bytes())
    reward, output = spec.reward, job_storage(settings, spec.storage.output).output
    factory = ScorerFactory(reward.computing + reward.waiting, output)
    allow_many_files()  # Each episode takes four.
    token = Path(os.environ[contract.ENV_REWARD_TOKEN]).read_text(encoding="utf-8").strip()
    captured = CapturedLog()
    server = RewardServer(
        factory, token, reward.num_computing + reward.num_waiting, captured, environments=spec.environments
    )
    with captured.capturing():
        code, reason = asyncio.run(_serve(server, settings.pod_ip))
        log.info("the pod ends", code=code, reason=reason)
    settings.report_reason(reason)
    return code


async def _serve(server: "RewardServer", host: str) -> tuple[int, str]:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with server.listening(host, contract.REWARD_PORT):
        log.info("the reward pod serves", port=contract.REWARD_PORT)
        stopping, hangs = asyncio.create_task(stop.wait()), asyncio.create_task(server.hangs.wait())
        done, _ = await asyncio.wait({stopping, hangs}, return_when=asyncio.FIRST_COMPLETED)
        if stopping in done:
            return int(ExitCode.INTERRUPTED), ASKED_TO_STOP
        return CRASHED, f"a reward function hangs for {CLOSE_LIMIT_S:g} s after it was given up"


class RewardServer:
    """Server with one worker per connection, the log of the pod, and `/health`."""

    def __init__(
        self,
        factory: ScorerFactory,
        token: str,
        num_workers: int,
        captured: CapturedLog | None = None,
        *,
        environments: Sequence[Environment] = (),
        close_limit_s: float = CLOSE_LIMIT_S,
    ) -> None:
        """Prepare the server; `captured` is the log of the pod."""
        assert token, "everybody would be let in"
        self.hangs = asyncio.Event()
        """Event that is set when a worker that was given up does not end."""
        self._name = str(uuid.uuid4())
        self._factory = factory
        self._templates = {one.name: Template(one) for one in environments}
        self._num_hosts = 0
        """Number of connections that have episodes."""
        self._captured = captured or CapturedLog()
        self._token = f"Bearer {token}".encode()
        self._most_workers = SPARE_WORKERS * num_workers
        self._close_limit_s = close_limit_s
        self._threads: set[ScoringThread] = set()
        self._sockets: set[web.WebSocketResponse] = set()
        self._closing: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Serve while the block runs; yields the port."""
        application = web.Application()
        application.router.add_get("/health", self._health)
        application.router.add_get(pod_protocol.PATH, self._worker)
        application.router.add_get(environment_protocol.PATH, self._episodes)
        application.router.add_get(pod_protocol.LOG_PATH, self._log)
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
            await asyncio.gather(*(template.close() for template in self._templates.values()))
            for closing in list(self._closing):
                closing.cancel()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="ready\n")

    async def _log(self, request: web.Request) -> web.Response:
        """Answer with what was written to the log since the last request."""
        self._require_token(request)
        return web.Response(body=self._captured.take())

    def _require_token(self, request: web.Request) -> None:
        if not hmac.compare_digest(request.headers.get("Authorization", "").encode(), self._token):
            raise web.HTTPUnauthorized

    async def _worker(self, request: web.Request) -> web.WebSocketResponse:
        self._require_token(request)
        if len(self._threads) >= self._most_workers:
            raise web.HTTPServiceUnavailable(text="every worker is taken")
        socket = web.WebSocketResponse(
            heartbeat=pod_protocol.HEARTBEAT_S, max_msg_size=pod_protocol.MAX_REQUEST_BYTES, compress=False
        )
        await socket.prepare(request)
        self._sockets.add(socket)
        try:
            await socket.send_bytes(pod_protocol.encode(Hello(pod=self._name)))
            message = await socket.receive()
            if message.type is WSMsgType.BINARY:
                await self._serve_worker(socket, self._factory_for(message.data))
        except BadMessage as error:
            await _refuse(socket, error)
        finally:
            self._sockets.discard(socket)
        return socket

    async def _episodes(self, request: web.Request) -> web.WebSocketResponse:
        """Serve the episodes of a connection, which end with it."""
        self._require_token(request)
        if self._num_hosts >= MAX_HOSTS:
            raise web.HTTPServiceUnavailable(text="other connections have episodes")
        socket = web.WebSocketResponse(
            heartbeat=pod_protocol.HEARTBEAT_S, max_msg_size=environment_protocol.MAX_MESSAGE_BYTES, compress=False
        )
        host = EnvironmentHost(self._templates, socket.send_bytes)
        self._num_hosts += 1
        try:
            await socket.prepare(request)
            self._sockets.add(socket)
            await socket.send_bytes(pod_protocol.encode(Hello(pod=self._name)))
            async for message in socket:
                if message.type is WSMsgType.BINARY:
                    host.receive(message.data)
        except BadMessage as error:
            await _refuse(socket, error)
        finally:
            self._sockets.discard(socket)
            host.close()
            self._num_hosts -= 1
        return socket

    def _factory_for(self, data: bytes) -> ScorerFactory:
        """Return what a worker needs to know, by the first message; raises BadMessage."""
        begin = pod_protocol.decode(Begin, data)
        functions = pod_protocol.functions_of(begin, self._factory.functions)
        return replace(self._factory, functions=functions, rehearsals=begin.rehearsals)

    async def _serve_worker(self, socket: web.WebSocketResponse, factory: ScorerFactory) -> None:
        thread = ScoringThread(factory)
        self._threads.add(thread)
        try:
            await self._work(socket, thread)
        finally:
            thread.kill()
            closing = asyncio.create_task(self._wait_ended(thread))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _work(self, socket: web.WebSocketResponse, thread: ScoringThread) -> None:
        """Read while the worker works, to notice a client that gives up and closes the connection."""
        work = asyncio.create_task(self._start(socket, thread))
        try:
            async for message in socket:
                if message.type is not WSMsgType.BINARY or not work.done():
                    await socket.close(code=WSCloseCode.POLICY_VIOLATION, message=b"one call at a time")
                    return
                work.result()
                work = asyncio.create_task(self._answer(socket, thread, message.data))
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await work

    async def _start(self, socket: web.WebSocketResponse, thread: ScoringThread) -> None:
        try:
            found = await asyncio.wrap_future(thread.ready)
        except Exception as error:  # noqa: BLE001 - the coordinator gets it, and decides
            await socket.send_bytes(pod_protocol.encode(pod_protocol.started(error)))
        else:
            await socket.send_bytes(pod_protocol.encode(pod_protocol.started(found)))

    async def _answer(self, socket: web.WebSocketResponse, thread: ScoringThread, data: bytes) -> None:
        try:
            request = pod_protocol.decode(ScoreRequest, data)
        except BadMessage as error:
            await _refuse(socket, error)
            return
        try:
            outcomes = await asyncio.wrap_future(thread.score(request.function, request.items))
            answer = pod_protocol.encode_outcomes(request.number, outcomes)
        except Exception as error:  # noqa: BLE001 - as above
            answer = pod_protocol.encode_outcomes(request.number, [error] * len(request.items))
        await socket.send_bytes(answer)

    async def _wait_ended(self, thread: ScoringThread) -> None:
        try:
            await asyncio.wait_for(asyncio.wrap_future(thread.ended), self._close_limit_s)
        except TimeoutError:
            self.hangs.set()
        else:
            self._threads.discard(thread)


async def _refuse(socket: web.WebSocketResponse, error: BadMessage) -> None:
    log.error("a request cannot be read", reason=str(error))
    await socket.close(code=WSCloseCode.POLICY_VIOLATION)
