"""A pod with environments in this process, and a client that asks it."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import aiohttp

from longshore.api.environment import Environment
from longshore_runtime.environments.pod_protocol import (
    PATH,
    Act,
    Acted,
    Answer,
    Broken,
    Close,
    Finish,
    Finished,
    Open,
    Opened,
    ToolCall,
    decode_answer,
    encode,
)
from longshore_runtime.environments.pod_server import EnvironmentServer
from longshore_runtime.rewards.fork_server import allow_many_files
from longshore_runtime.rewards.transports import pod_protocol

TOKEN: Final = "of the tests"
USERS: Final = "tests.contract.environments.users"
PATIENT_S: Final = 120.0
"""A limit that nothing reaches, however busy the machine is."""


def python(name: str, path: str | None = None, **fields: Any) -> Environment:
    """An environment of kind Python, with limits that only those of the test undercut."""
    limits = {"callTimeoutSeconds": PATIENT_S, "episodesPerPod": 4096, **fields}
    where = {} if "tools" in fields else {"importPath": path or f"{USERS}:{name.capitalize()}"}
    return Environment.model_validate({"name": name, "kind": "Python", **where, **limits})


@contextmanager
def serving(*environments: Environment, host: str = "127.0.0.1", port: int = 0, token: str = TOKEN) -> Iterator[int]:
    """A pod that serves from a thread while the block runs; yields its port, which is free if it is not given."""
    allow_many_files()
    loop, found = asyncio.new_event_loop(), [port]
    listens, end = threading.Event(), asyncio.Event()

    async def serve() -> None:
        server = EnvironmentServer(environments, token)
        async with server.listening(host, port) as found[0]:
            listens.set()
            await end.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="environment-pod")
    thread.start()
    try:
        assert listens.wait(PATIENT_S)
        yield found[0]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()


class Client:
    """A connection to a pod. Its methods wait for the answer to their question."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self._answers: defaultdict[int, asyncio.Queue[Answer]] = defaultdict(asyncio.Queue)
        self.ended = asyncio.create_task(self._read())
        """Done once the pod has closed the connection."""

    async def open(self, episode: int, environment: str, seed: int = 0, **row: Any) -> Opened | Broken:
        """Begin an episode."""
        return await self._ask(Open(episode, environment, row, seed))  # type: ignore[return-value]

    async def say(self, episode: int, content: str) -> Acted | Broken:
        """A turn without calls."""
        return await self._ask(Act(episode, content, []))  # type: ignore[return-value]

    async def call(self, episode: int, *calls: tuple[str, dict[str, Any]]) -> Acted | Broken:
        """A turn with calls."""
        return await self._ask(Act(episode, "", [ToolCall(*call) for call in calls]))  # type: ignore[return-value]

    async def finish(self, episode: int, *, wants_state: bool = False) -> Finished | Broken:
        """End an episode for its reward."""
        return await self._ask(Finish(episode, wants_state))  # type: ignore[return-value]

    async def close(self, episode: int) -> None:
        """End an episode."""
        await self.socket.send_bytes(encode(Close(episode)))

    async def end(self) -> None:
        """End the connection."""
        self.ended.cancel()
        await self.socket.close()

    async def _ask(self, question: Open | Act | Finish) -> Answer:
        await self.socket.send_bytes(encode(question))
        async with asyncio.timeout(PATIENT_S):
            return await self._answers[question.episode].get()

    async def _read(self) -> None:
        async for message in self.socket:
            answer = decode_answer(message.data)
            self._answers[answer.episode].put_nowait(answer)


@asynccontextmanager
async def connected(port: int, host: str = "127.0.0.1") -> AsyncIterator[Client]:
    """A connection while the block runs."""
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session,
        session.ws_connect(f"http://{host}:{port}{PATH}", max_msg_size=0) as socket,
    ):
        pod_protocol.decode(pod_protocol.Hello, await socket.receive_bytes())
        client = Client(socket)
        yield client
        await client.end()


def texts(answer: Acted | Broken) -> list[str]:
    """What an environment says to a turn."""
    assert isinstance(answer, Acted), answer
    return [one.content for one in answer.observations]
