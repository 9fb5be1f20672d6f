"""Main program of a reward pod: scores what the coordinator sends, and answers with numbers (`pod_protocol`)."""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from aiohttp import WSCloseCode, WSMsgType, web

from longshore.api import contract
from longshore.api.spec import RLJobSpec
from longshore_runtime.rewards.captured_log import CapturedLog
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.transports import pod_protocol
from longshore_runtime.rewards.transports.pod_protocol import BadMessage, Begin, ScoreRequest
from longshore_runtime.rewards.transports.thread import ScoringThread
from longshore_runtime.rewards.transports.token_server import TokenServer, new_socket, refuse
from longshore_runtime.settings import Settings
from longshore_runtime.storage import job_storage

SPARE_WORKERS: Final = 4
"""Most workers at a time, as a multiple of their regular number: predecessors may not have ended yet."""
CLOSE_LIMIT_S: Final = 60.0
"""Seconds after which an abandoned worker that has not ended counts as hanging."""


def run_reward(settings: Settings) -> int:
    """Serve until the pod is asked to stop; returns the exit status of the contract."""
    spec = RLJobSpec.model_validate_json(settings.config.read_bytes())
    reward, output = spec.reward, job_storage(settings, spec.storage.output).output
    factory = ScorerFactory(reward.computing + reward.waiting, output)
    token = Path(os.environ[contract.ENV_REWARD_TOKEN]).read_text(encoding="utf-8").strip()
    server = RewardServer(factory, token, reward.num_computing + reward.num_waiting)
    return server.run(settings, contract.REWARD_PORT)


class RewardServer(TokenServer):
    """Server with one worker per connection."""

    def __init__(
        self,
        factory: ScorerFactory,
        token: str,
        num_workers: int,
        captured: CapturedLog | None = None,
        *,
        close_limit_s: float = CLOSE_LIMIT_S,
    ) -> None:
        """Prepare the server; `captured` is the log of the pod."""
        super().__init__(token, captured)
        self._factory = factory
        self._most_workers = SPARE_WORKERS * num_workers
        self._close_limit_s = close_limit_s
        self._threads: set[ScoringThread] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def _routes(self) -> Sequence[web.RouteDef]:
        return [web.get(pod_protocol.PATH, self._worker)]

    async def _end(self) -> None:
        for closing in list(self._closing):
            closing.cancel()

    async def _worker(self, request: web.Request) -> web.WebSocketResponse:
        self._require_token(request)
        if len(self._threads) >= self._most_workers:
            raise web.HTTPServiceUnavailable(text="every worker is taken")
        socket = new_socket(pod_protocol.MAX_REQUEST_BYTES)
        async with self._connection(request, socket):
            message = await socket.receive()
            if message.type is WSMsgType.BINARY:
                await self._serve_worker(socket, self._factory_for(message.data))
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
            await refuse(socket, error)
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
            self._break(f"a reward function hangs for {CLOSE_LIMIT_S:g} s after it was given up")
        else:
            self._threads.discard(thread)
