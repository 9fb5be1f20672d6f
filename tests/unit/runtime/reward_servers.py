"""Reward pods in this process: the real server on loopback addresses, in a thread of its own."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longshore.api.names import Component
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.transports.pod import PodConnections, ServingPods
from longshore_runtime.rewards.transports.thread import RewardServer, pod_places
from longshore_runtime.rewards.transports.transport import WorkerPlace
from tests.addresses import network

TOKEN = "of the tests"


@dataclass
class Pods:
    """Pods that come and go, with one worker each unless a test says otherwise, and the coordinator's way to them."""

    directory: Path
    num_workers: int = 1
    close_limit_s: float = 60.0
    calls_may_hang: bool = True
    """Whether the scorers of a pod that ends are closed under their workers, as the end of a process would do."""
    factory: ScorerFactory | None = None
    """Factory of the scorers of pods that join from now on."""
    _ends: dict[int, asyncio.Event] = field(default_factory=dict)
    _stopping: dict[int, "asyncio.Task[None]"] = field(default_factory=dict)
    servers: dict[int, RewardServer] = field(default_factory=dict)
    port: int = 0
    _connections: PodConnections | None = None

    def __post_init__(self) -> None:
        (self.directory / "token").write_text(f"{TOKEN}\n")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reward-servers", daemon=True)
        self._thread.start()

    def places(self, num_pods: int) -> list[WorkerPlace]:
        """The coordinator's side, with a worker in each pod."""
        self._run(self._choose_port())
        self._connections = PodConnections(self.serving(num_pods))
        return pod_places(self._connections, 1)

    def serving(self, num_pods: int) -> ServingPods:
        """The pods, as the coordinator knows them."""
        token = self.directory / "token"
        return ServingPods(Component.REWARD, num_pods, self.address, lambda index: token, self.port)

    def address(self, index: int) -> str | None:
        """As the operator would tell it: of a pod that is there."""
        return self._address(index) if index in self._ends else None

    def join(self, index: int) -> None:
        """A pod starts; it listens when this returns."""
        self._run(self._join(index))

    def leave(self, index: int) -> None:
        """It ends, with every connection."""
        self._run(self._leave(index))

    def close(self) -> None:
        if self._connections is not None:
            self._connections.close()
        for index in list(self._ends):
            self.leave(index)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _address(self, index: int) -> str:
        return f"{network()}.2.{index + 2}"

    async def _choose_port(self) -> None:
        """Free at the first address; the others are this process's own."""
        server = await asyncio.start_server(lambda *_: None, self._address(0), self.port)
        self.port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()

    async def _join(self, index: int) -> None:
        assert self.factory is not None, "a pod knows its functions"
        server = RewardServer(self.factory, TOKEN, self.num_workers, close_limit_s=self.close_limit_s)
        listens, end = asyncio.Event(), asyncio.Event()
        self.servers[index] = server
        self._stopping[index] = asyncio.create_task(
            self._serve(server.listening(self._address(index), self.port), listens, end)
        )
        await listens.wait()
        self._ends[index] = end

    async def _leave(self, index: int) -> None:
        # What runs in a pod ends with it.
        threads = list(self.servers[index]._threads)
        self._ends.pop(index).set()
        await self._stopping.pop(index)
        for thread in threads:
            if self.calls_may_hang:
                for scorer in thread._scorers.values():
                    await asyncio.to_thread(scorer.close)
            else:
                await asyncio.wrap_future(thread.ended)

    async def _serve(
        self, listening: "contextlib.AbstractAsyncContextManager[int]", listens: asyncio.Event, end: asyncio.Event
    ) -> None:
        async with listening:
            listens.set()
            await end.wait()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()
