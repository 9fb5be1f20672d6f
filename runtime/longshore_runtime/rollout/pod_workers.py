"""Reward workers in reward pods, which run code that models wrote: one connection each, read as from an attacker.

A thread of its own holds all connections. A worker is lost with its connection; see `rewards.protocol`.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Never

import aiohttp
import structlog

from longshore.api import contract
from longshore.api.reward import RewardFunction
from longshore_runtime.rewards import protocol
from longshore_runtime.rewards.protocol import Answer, BadMessage, Failed, Hello, Started
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import RewardError, ScoreItem, ScoreOutcome
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.rollout.worker_hosts import RewardWorker, WorkerDied
from longshore_runtime.settings import host_port

log = structlog.get_logger()

_CONNECT_LIMIT_S: Final = 5.0
"""Time limit of a connection: packets to the address of a lost pod may get no answer."""
_HELLO_LIMIT_S: Final = 10.0
_TICK_S: Final = 0.5
"""Seconds between two attempts to reach a pod."""

AddressOf = Callable[[int], str | None]
"""Function that returns a reward pod's IP address by its index, if it is known; called from another thread."""


class PodWorkers:
    """Implements `WorkerHost`. A worker waits until its pod is there."""

    def __init__(
        self, num_pods: int, workers_per_pod: int, address_of: AddressOf, token: Path, port: int = contract.REWARD_PORT
    ) -> None:
        """Start the thread of the connections; `token`: file with the bearer token of the job's reward pods."""
        self.num_places = num_pods * workers_per_pod
        self._workers_per_pod = workers_per_pod
        self._address_of = address_of
        self._token = token
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._reported: dict[int, str] = {}
        """Last reason why a pod did not answer, which all its workers share, by pod."""
        self._thread = threading.Thread(target=self._loop.run_forever, name="reward-pods", daemon=True)
        self._thread.start()

    def ask_for(self, place: int, factory: ScorerFactory, wait_s: float) -> RewardWorker:
        """Begin to look for a worker; the pod makes the factory's functions itself, from the job's spec."""
        worker = _PodWorker(self._loop, factory)
        self._loop.call_soon_threadsafe(self._begin, worker, place // self._workers_per_pod, wait_s)
        return worker

    def name(self, place: int) -> str:
        return f"reward pod {place // self._workers_per_pod}"

    def close(self) -> None:
        """Close every connection."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _begin(self, worker: "_PodWorker", pod: int, wait_s: float) -> None:
        task = asyncio.get_running_loop().create_task(self._live(worker, pod, wait_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        worker.begun(task)

    async def _live(self, worker: "_PodWorker", pod: int, wait_s: float) -> None:
        reason = "it was given up"
        try:
            await asyncio.sleep(wait_s)
            async with await self._connected(pod) as socket:
                await worker.serve(socket)
        except (WorkerDied, aiohttp.ClientError, OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
        except BadMessage as error:
            reason = f"what it says cannot be read: {error}"
            log.warning("a reward pod breaks the protocol", pod=pod, reason=str(error))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            log.exception("the connection to a reward pod failed")
        finally:
            worker.lost(reason)

    async def _connected(self, pod: int) -> aiohttp.ClientWebSocketResponse:
        """Connect to the pod, without a time limit for its start."""
        while True:
            try:
                if (address := self._address_of(pod)) is not None:
                    socket = await self._connect(address)
                    self._reported.pop(pod, None)
                    return socket
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                # Its address may have another owner by now, who is asked no more than once a tick.
                failure = f"{type(error).__name__}: {error}"
                if self._reported.get(pod) != failure:
                    log.info("a reward pod does not answer yet", pod=pod, address=address, reason=failure)
                self._reported[pod] = failure
            await asyncio.sleep(_TICK_S)

    async def _connect(self, address: str) -> aiohttp.ClientWebSocketResponse:
        session = self._session = self._session or _session()
        token = self._token.read_text(encoding="utf-8").strip()
        async with asyncio.timeout(_CONNECT_LIMIT_S):
            return await session.ws_connect(
                f"http://{host_port(address, self._port)}{protocol.PATH}",
                headers={"Authorization": f"Bearer {token}"},
                heartbeat=protocol.HEARTBEAT_S,
                max_msg_size=protocol.MAX_ANSWER_BYTES,
                timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
            )

    async def _close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()


def _session() -> aiohttp.ClientSession:
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


class _PodWorker:
    """Implements `RewardWorker`. What is not a `RewardWorker`'s is used by the thread of the connections alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop, factory: ScorerFactory) -> None:
        self.node: Future[str] = Future()
        self.ready: Future[Surroundings] = Future()
        self.death: Future[str] = Future()
        self._loop = loop
        self._factory = factory
        self._functions = {function.name: function for function in factory.functions}
        self._calls: asyncio.Queue[_PodCall] = asyncio.Queue()
        self._current: _PodCall | None = None
        self._number = 0
        self._is_killed = False
        self._task: asyncio.Task[None] | None = None

    def score(self, function: str, items: Sequence[ScoreItem]) -> "Future[list[ScoreOutcome]]":
        call = _PodCall(self._functions[function], items)
        self._loop.call_soon_threadsafe(self._take, call)
        return call.answer

    def kill(self) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed, and every worker with it.
            self._loop.call_soon_threadsafe(self._kill)

    def begun(self, task: "asyncio.Task[None]") -> None:
        """Note the task that serves the worker."""
        self._task = task
        if self._is_killed:
            task.cancel()

    async def serve(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Use a connection until it ends; raises BadMessage or WorkerDied."""
        async with asyncio.timeout(_HELLO_LIMIT_S):
            hello = protocol.decode(Hello, await _received(socket))
        self.node.set_result(hello.pod)
        await socket.send_bytes(protocol.encode_begin(self._factory.functions, self._factory.rehearsals))
        outcome = protocol.decode(Started, await _received(socket)).outcome
        if isinstance(outcome, Failed):
            self.ready.set_exception(protocol.error_of(outcome))
        else:
            self.ready.set_result(protocol.surroundings_of(outcome))
        sending = asyncio.create_task(self._send(socket))
        try:
            await self._receive(socket)
        finally:
            sending.cancel()

    def lost(self, reason: str) -> None:
        """Report the loss of the worker."""
        death = WorkerDied(reason)
        while not self._calls.empty():
            _fail(self._calls.get_nowait().answer, death)
        if self._current is not None:
            _fail(self._current.answer, death)
        _fail(self.node, death)
        _fail(self.ready, death)
        if not self.death.done():
            self.death.set_result(reason)

    async def _send(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            call = await self._calls.get()
            self._number += 1
            try:
                data = protocol.encode_request(self._number, call.function, call.items)
            except RewardError as error:
                call.answer.set_exception(error)
                continue
            self._current = call
            await socket.send_bytes(data)

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> Never:
        """Read answers; one to a call that is not under way is dropped."""
        while True:
            answer = protocol.decode(Answer, await _received(socket))
            call = self._current
            if call is None or answer.number != self._number:
                log.warning("a reward pod answers what nobody asked", number=answer.number)
                continue
            outcomes = protocol.outcomes_of(answer, call.items)
            self._current = None
            call.answer.set_result(outcomes)

    def _take(self, call: "_PodCall") -> None:
        if self.death.done():
            _fail(call.answer, WorkerDied(self.death.result()))
        else:
            self._calls.put_nowait(call)

    def _kill(self) -> None:
        self._is_killed = True
        if self._task is not None:
            self._task.cancel()


class _PodCall:
    def __init__(self, function: RewardFunction, items: Sequence[ScoreItem]) -> None:
        self.function = function
        self.items = items
        self.answer: Future[list[ScoreOutcome]] = Future()


async def _received(socket: aiohttp.ClientWebSocketResponse) -> bytes:
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


def _fail(future: "Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
