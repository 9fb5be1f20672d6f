"""Score in reward pods, which run code that models wrote: one connection each, read as from an attacker.

    driver ── `score`, `kill` ──► PodTransport ──► thread "reward-pods" ── WebSocket ──► pod_server ──► ScoringThread

A thread of its own holds all connections. A worker is lost with its connection; see `pod_protocol`.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Never

import aiohttp
import structlog

from longshore.api.names import Component
from longshore.api.reward import RewardFunction
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import RewardError, ScoreItem, ScoreOutcome, WorkerDied
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.rewards.transports import pod_protocol
from longshore_runtime.rewards.transports.pod_protocol import Answer, BadMessage, Failed, Hello, Started
from longshore_runtime.rewards.transports.transport import WorkerPlace, fail
from longshore_runtime.settings import host_port

log = structlog.get_logger()

_CONNECT_LIMIT_S: Final = 5.0
"""Time limit of a connection: packets to the address of a lost pod may get no answer."""
_HELLO_LIMIT_S: Final = 10.0
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
        self.loop = asyncio.new_event_loop()
        self._session: aiohttp.ClientSession | None = None
        self._reported: dict[int, str] = {}
        """Last reason why a pod did not answer, which all its workers share, by pod."""
        self._thread = threading.Thread(target=self.loop.run_forever, name=f"{pods.component}-pods", daemon=True)
        self._thread.start()

    def places(self, workers_per_pod: int) -> list[WorkerPlace]:
        """Return the places of workers in these pods, pod after pod."""
        pods = [pod for pod in range(self.pods.count) for _ in range(workers_per_pod)]
        return [WorkerPlace(f"reward pod {pod}", partial(PodTransport, self, pod)) for pod in pods]

    def close(self) -> None:
        """Close every connection."""
        asyncio.run_coroutine_threadsafe(self._close(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

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
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
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
