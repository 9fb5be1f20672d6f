"""Score in a thread, of this process or of a reward pod: both ends of the connection to one (`pod_protocol`).

    RewardPool ── `score`, `kill` ──► ScoringThread
    RewardPool ── `score`, `kill` ──► PodTransport ──► thread "reward-pods" ── WebSocket ──┐
                                reward pod: ScoringThread ◄── event loop of RewardServer ◄─┘

A worker is a thread with its own instance of every reward function, which does one call at a time. That is enough:
functions that run somebody else's code do it in processes of their own.
"""

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Never, TypeVar

import aiohttp
import structlog
from aiohttp import WSCloseCode, WSMsgType, web

from longshore.api import contract
from longshore.api.reward import RewardFunction
from longshore.api.spec import RLJobSpec
from longshore_runtime.rewards.captured_log import CapturedLog
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import ResponseScorer, RewardError, ScoreItem, ScoreOutcome, WorkerDied
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.rewards.transports import pod_protocol
from longshore_runtime.rewards.transports.pod import PodConnections, received
from longshore_runtime.rewards.transports.pod_protocol import (
    Answer,
    BadMessage,
    Begin,
    Failed,
    Hello,
    ScoreRequest,
    Started,
)
from longshore_runtime.rewards.transports.token_server import TokenServer, new_socket, refuse
from longshore_runtime.rewards.transports.transport import WorkerPlace, fail
from longshore_runtime.settings import Settings
from longshore_runtime.storage import job_storage

log = structlog.get_logger()

T = TypeVar("T")

_HELLO_LIMIT_S: Final = 10.0
SPARE_WORKERS: Final = 4
"""Most workers at a time, as a multiple of their regular number: predecessors may not have ended yet."""
CLOSE_LIMIT_S: Final = 60.0
"""Seconds after which an abandoned worker that has not ended counts as hanging."""


class ScoringThread:
    """Implements `Transport`; the worker is lost only when it is given up.

    A call that hangs keeps the thread, because it cannot be ended from outside.
    """

    def __init__(self, factory: ScorerFactory, wait_s: float = 0.0) -> None:
        """Start the thread, which waits before it makes the functions ready."""
        self.node: Future[str] = Future()
        self.node.set_result("here")
        self.death: Future[str] = Future()
        self.ended: Future[None] = Future()
        """Future that is done once everything that the thread started has ended; it cannot be cancelled."""
        self.ended.set_running_or_notify_cancel()
        self._scorers: dict[str, ResponseScorer] = {}
        """Functions that are ready, by name."""
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._unanswered: set[Future[Any]] = set()
        self._is_killed = threading.Event()

        def prepare() -> Surroundings:
            self._is_killed.wait(wait_s)
            return factory.create_all(self._scorers)

        self.ready = self._call(prepare)
        # A daemon: a call that hangs must not keep the process.
        threading.Thread(target=self._run, name="reward-worker", daemon=True).start()

    def score(self, function: str, items: Sequence[ScoreItem]) -> "Future[list[ScoreOutcome]]":
        return self._call(lambda: self._scorers[function].score_many(items))

    def kill(self) -> None:
        """Fail all calls, and end after the one that is under way; does not wait.

        A call that waits for something that is away waits no longer.
        """
        self._is_killed.set()
        for scorer in list(self._scorers.values()):
            scorer.give_up()
        for future in list(self._unanswered):
            fail(future, WorkerDied("it was given up"))
        self._calls.put(None)

    def _call(self, work: Callable[[], T]) -> "Future[T]":
        future: Future[T] = Future()
        self._unanswered.add(future)
        future.add_done_callback(self._unanswered.discard)
        if self._is_killed.is_set():
            fail(future, WorkerDied("it was given up"))
        self._calls.put((future, work))
        return future

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, work = call
            if future.done():  # It was given up.
                continue
            with contextlib.suppress(InvalidStateError):  # It was given up meanwhile.
                try:
                    result = work()
                except BaseException as error:  # noqa: BLE001 - it goes to the caller, who waits
                    future.set_exception(error)
                else:
                    future.set_result(result)
        try:
            for scorer in self._scorers.values():
                scorer.close()
        except Exception:
            log.exception("a reward function does not end properly")
        self.ended.set_result(None)


def pod_places(connections: PodConnections, workers_per_pod: int) -> list[WorkerPlace]:
    """Return the places of workers in reward pods, pod after pod."""
    pods = [pod for pod in range(connections.pods.count) for _ in range(workers_per_pod)]
    return [WorkerPlace(f"reward pod {pod}", partial(PodTransport, connections, pod)) for pod in pods]


@dataclass(frozen=True)
class _Call:
    function: RewardFunction
    items: Sequence[ScoreItem]
    answer: "Future[list[ScoreOutcome]]" = field(default_factory=Future)


class PodTransport:
    """Implements `Transport`: one connection. Its private methods run in the thread of the connections."""

    def __init__(self, connections: PodConnections, pod: int, factory: ScorerFactory, wait_s: float) -> None:
        """Begin to look for a worker; the pod makes the factory's functions itself, from the job's spec."""
        self.node: Future[str] = Future()
        self.ready: Future[Surroundings] = Future()
        self.death: Future[str] = Future()
        self._connections = connections
        self._pod = pod
        self._factory = factory
        self._functions = {function.name: function for function in factory.functions}
        self._calls: asyncio.Queue[_Call] = asyncio.Queue()
        self._current: _Call | None = None
        self._number = 0
        self._task = asyncio.run_coroutine_threadsafe(self._live(wait_s), connections.loop)

    def score(self, function: str, items: Sequence[ScoreItem]) -> "Future[list[ScoreOutcome]]":
        call = _Call(self._functions[function], items)
        self._connections.loop.call_soon_threadsafe(self._take, call)
        return call.answer

    def kill(self) -> None:
        self._task.cancel()

    async def _live(self, wait_s: float) -> None:
        """Wait for the pod, and use the connection to it until the worker is lost."""
        reason = "it was given up"
        try:
            await asyncio.sleep(wait_s)
            async with await self._connections.connect(self._pod) as socket:
                await self._serve(socket)
        except (WorkerDied, aiohttp.ClientError, OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
        except BadMessage as error:
            reason = f"what it says cannot be read: {error}"
            log.warning("a reward pod breaks the protocol", pod=self._pod, reason=str(error))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            log.exception("the connection to a reward pod failed")
        finally:
            self._lose(reason)

    async def _serve(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Use a connection until it ends; raises BadMessage or WorkerDied."""
        async with asyncio.timeout(_HELLO_LIMIT_S):
            hello = pod_protocol.decode(Hello, await received(socket))
        self.node.set_result(hello.pod)
        await socket.send_bytes(pod_protocol.encode_begin(self._factory.functions, self._factory.rehearsals))
        outcome = pod_protocol.decode(Started, await received(socket)).outcome
        if isinstance(outcome, Failed):
            self.ready.set_exception(pod_protocol.error_of(outcome))
        else:
            self.ready.set_result(pod_protocol.surroundings_of(outcome))
        sending = asyncio.create_task(self._send(socket))
        try:
            await self._receive(socket)
        finally:
            sending.cancel()

    async def _send(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            call = await self._calls.get()
            self._number += 1
            self._current = call  # Before anything can go wrong with it: it fails with the worker then.
            try:
                data = pod_protocol.encode_request(self._number, call.function, call.items)
            except RewardError as error:
                self._current = None
                call.answer.set_exception(error)
                continue
            await socket.send_bytes(data)

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> Never:
        """Read answers; one to a call that is not under way is dropped."""
        while True:
            answer = pod_protocol.decode(Answer, await received(socket))
            call = self._current
            if call is None or answer.number != self._number:
                log.warning("a reward pod answers what nobody asked", number=answer.number)
                continue
            outcomes = pod_protocol.outcomes_of(answer, call.items)
            self._current = None
            call.answer.set_result(outcomes)

    def _take(self, call: _Call) -> None:
        if self.death.done():
            fail(call.answer, WorkerDied(self.death.result()))
        else:
            self._calls.put_nowait(call)

    def _lose(self, reason: str) -> None:
        """Fail what waits for the worker, and report its loss."""
        error = WorkerDied(reason)
        while not self._calls.empty():
            fail(self._calls.get_nowait().answer, error)
        if self._current is not None:
            fail(self._current.answer, error)
        fail(self.node, error)
        fail(self.ready, error)
        if not self.death.done():
            self.death.set_result(reason)


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
