"""An aiohttp application in a separate thread, so that it answers while the program is busy."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Self

from aiohttp import web


class Served:
    """Serves while the `with` block runs."""

    def __init__(self, name: str, application: web.Application, hosts: Sequence[str], port: int) -> None:
        self._hosts = hosts
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._runner = web.AppRunner(application, access_log=None)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def port(self) -> int:
        """Port at which it listens; of port 0, the one that was free."""
        return int(self._runner.addresses[0][1])

    async def _start(self) -> None:
        await self._runner.setup()
        for host in self._hosts:
            await web.TCPSite(self._runner, host, self._port, reuse_address=True).start()
