"""Serves pages on this machine: figures and texts of a job from its coordinator, everything else from the API server.

Read-only, for this machine, and for pages that came from here.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import aiohttp
from aiohttp import hdrs, web

from longshore.page.document import Document, live_fleet_page, live_page
from longshore.page.headers import HEADERS
from longshore.page.view import PageModel
from longshore_cli.errors import CliError
from longshore_cli.page.forward import Forward
from longshore_kube.errors import KubeError

_TIMEOUT: Final = aiohttp.ClientTimeout(total=60.0)
_FROM_COORDINATOR: Final = (
    "/api/view",
    r"/api/rounds/{step:\d{1,9}}",
    r"/api/{kind:samples|held-out}/{step:\d{1,9}}",
    r"/api/{kind:samples|held-out}/{step:\d{1,9}}/{draw:[0-9-]{1,64}}",
)
_KEPT_HEADERS: Final = (hdrs.CONTENT_TYPE, hdrs.ETAG)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class LocalPage:
    """What a browser on this machine is answered."""

    def __init__(self, page: Document, path: str, answer: Callable[[], PageModel], forward: Forward | None) -> None:
        """`answer` blocks, and is given at `path`; `forward`: to the coordinator, for the page of one job."""
        self._page = page
        self._path = path
        self._answer = answer
        self._forward = forward
        self._client: aiohttp.ClientSession | None = None

    def application(self) -> web.Application:
        """Its routes; there is none that changes anything."""
        application = web.Application(middlewares=[self._guard])
        application.router.add_get("/", self._get_page)
        application.router.add_get(self._path, self._get_answer)
        if self._forward is not None:
            for path in _FROM_COORDINATOR:
                application.router.add_get(path, self._get_from_coordinator)
        application.cleanup_ctx.append(self._connected)
        return application

    async def _connected(self, application: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as self._client:
            yield
        if self._forward is not None:
            await self._forward.close()

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        # Another site's name that leads here would make that site's scripts readers of this page.
        if request.host.rpartition(":")[0] not in ("127.0.0.1", "localhost"):
            raise web.HTTPForbidden(text="The page answers to this machine only.")
        try:
            response = await handler(request)
        except (CliError, KubeError) as error:
            raise web.HTTPBadGateway(text=str(error)) from error
        response.headers.update(HEADERS)
        return response

    async def _get_page(self, request: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": self._page.policy}
        return web.Response(text=self._page.html, content_type="text/html", headers=headers)

    async def _get_answer(self, request: web.Request) -> web.Response:
        view = await asyncio.to_thread(self._answer)
        return web.Response(text=view.model_dump_json(), content_type="application/json")

    async def _get_from_coordinator(self, request: web.Request) -> web.Response:
        assert self._client is not None and self._forward is not None, "the server runs, and for a job"
        tag = request.headers.get(hdrs.IF_NONE_MATCH)
        address = f"http://127.0.0.1:{await self._forward.port()}{request.path}"
        try:
            async with self._client.get(address, headers={hdrs.IF_NONE_MATCH: tag} if tag else {}) as answer:
                kept = {name: answer.headers[name] for name in _KEPT_HEADERS if name in answer.headers}
                return web.Response(status=answer.status, body=await answer.read(), headers=kept)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            # What forwards to a pod that is gone never finds its successor.
            await self._forward.close()
            raise CliError("The coordinator does not answer; it starts, restarts or has ended.") from error


async def serve(page: LocalPage, port: int, ready: Callable[[str], None]) -> None:
    """Serve until it is cancelled; `ready` is called with the address."""
    runner = web.AppRunner(page.application(), access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        except OSError as error:
            raise CliError(f"Port {port} cannot be used: {error.strerror}.", "Choose another --port.") from error
        ready(f"http://127.0.0.1:{runner.addresses[0][1]}/")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def job_page(cluster: Callable[[], PageModel], forward: Forward) -> LocalPage:
    """Return the page of one job."""
    return LocalPage(live_page(), "/api/cluster", cluster, forward)


def fleet_page(fleet: Callable[[], PageModel]) -> LocalPage:
    """Return the page of all jobs."""
    return LocalPage(live_fleet_page(), "/api/fleet", fleet, None)
