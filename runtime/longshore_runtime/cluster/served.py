"""An aiohttp application in a separate thread, so that it answers while the program is busy."""

from collections.abc import Sequence
from typing import Self

from aiohttp import web

from longshore_runtime.process.loop_thread import LoopThread


class Served:
    """Serves while the `with` block runs."""

    def __init__(self, name: str, application: web.Application, hosts: Sequence[str], port: int) -> None:
        self._hosts = hosts
        self._port = port
        self._name = name
        self._runner = web.AppRunner(application, access_log=None)

    def __enter__(self) -> Self:
        self._thread = LoopThread(self._name)
        self._thread.submit(self._start()).result()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.submit(self._runner.cleanup()).result()
        self._thread.close()

    @property
    def port(self) -> int:
        """Port at which it listens; of port 0, the one that was free."""
        return int(self._runner.addresses[0][1])

    async def _start(self) -> None:
        await self._runner.setup()
        for host in self._hosts:
            await web.TCPSite(self._runner, host, self._port, reuse_address=True).start()
