"""The embedded API server as a process of its own, which can be killed and started again on its data and port."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from longshore_devcluster.apiserver import ApiServer
from longshore_devcluster.apiserver.router import Router

Serve = Callable[[Router, web.Request], Awaitable[web.StreamResponse]]


def _as_it_is(serve: Serve) -> Serve:
    return serve


class LocalApiServer:
    """API server that serves from its folder between `start` and `kill`, or within a `with` block."""

    def __init__(self, folder: Path, wrap: Callable[[Serve], Serve] = _as_it_is) -> None:
        """Prepare the server; `wrap` makes what answers a request, in the process of the server."""
        self._folder = folder
        self._wrap = wrap
        self._port = 0
        self.pid = 0

    @property
    def kubeconfig(self) -> Path:
        """Path of the administrator's kubeconfig."""
        return self._folder / "data" / "kubeconfig"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self.kill()

    def start(self) -> None:
        """Start the server, and wait until it serves."""
        ready = self._folder / f"port-{time.monotonic_ns()}"
        self.pid = os.fork()
        if self.pid == 0:
            asyncio.run(self._serve(ready))
            os._exit(0)
        while not ready.exists():
            time.sleep(0.05)
        self._port = int(ready.read_text())

    def kill(self) -> None:
        """Kill the server, so that it cannot clean up."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    async def _serve(self, ready: Path) -> None:
        logging.disable()
        Router.serve = self._wrap(Router.serve)  # type: ignore[method-assign, assignment]
        server = ApiServer(self._folder / "data", port=self._port)
        await server.start()
        new = ready.with_suffix(".new")
        new.write_text(server.url.rsplit(":", 1)[1])
        new.rename(ready)
        await asyncio.Event().wait()
