"""Serves pages on this machine: figures and texts of a job from its coordinator, everything else from the API server.

The page of a finished job, whose coordinator has ended, is its report. The pages are read-only, for this machine, and
for pages that came from here.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import aiohttp
from aiohttp import hdrs, web

from longshore.page.document import Document, live_fleet_page, live_page
from longshore.page.headers import HEADERS
from longshore.page.view import ClusterView, PageModel
from longshore_cli.errors import CliError
from longshore_cli.page.forward import Forward
from longshore_client.errors import ClientError
from longshore_kube.errors import KubeError

_TIMEOUT: Final = aiohttp.ClientTimeout(total=60.0)
_FROM_COORDINATOR: Final = (
    "/api/view",
    r"/api/rounds/{step:\d{1,9}}",
    r"/api/{kind:samples|held-out}/{step:\d{1,9}}",
    r"/api/{kind:samples|held-out}/{step:\d{1,9}}/{draw:[0-9-]{1,64}}",
)
_JOB_PLACE: Final = "/jobs/{namespace:[a-z0-9-]{1,63}}/{name:[a-z0-9.-]{1,253}}"
_KEPT_HEADERS: Final = (hdrs.CONTENT_TYPE, hdrs.ETAG)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class JobSource:
    """What the page of one job is made from. The functions block."""

    cluster: Callable[[], ClusterView]
    """Reads what the API server knows of the job."""
    forward: Forward
    """Leads to the coordinator of the job."""
    report: Callable[[], bytes]
    """Makes the report of the job, an HTML document."""


@dataclass(frozen=True)
class Fleet:
    """What the page of all jobs is made from. The functions block."""

    view: Callable[[], PageModel]
    job: Callable[[str, str], JobSource]
    """Returns the source of a job by namespace and name."""


class LocalPage:
    """Answers of this machine to a browser: the page of one job, or that of all jobs with the pages of each."""

    def __init__(self, source: JobSource | Fleet) -> None:
        self._source = source
        self._jobs: dict[tuple[str, str], JobSource] = {}
        self._reports: dict[JobSource, bytes] = {}
        self._making = asyncio.Lock()
        self._client: aiohttp.ClientSession | None = None

    def application(self) -> web.Application:
        """Build the application; all of its routes are read-only."""
        application = web.Application(middlewares=[self._guard])
        place = ""
        if isinstance(self._source, Fleet):
            application.router.add_get("/", self._get_fleet_page)
            application.router.add_get("/api/fleet", self._get_fleet)
            place = _JOB_PLACE
        application.router.add_get(f"{place}/", self._get_job_page)
        application.router.add_get(f"{place}/api/cluster", self._get_cluster)
        for path in _FROM_COORDINATOR:
            application.router.add_get(f"{place}{path}", self._get_from_coordinator)
        application.cleanup_ctx.append(self._connected)
        return application

    async def _connected(self, application: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as self._client:
            yield
        sources = self._jobs.values() if isinstance(self._source, Fleet) else [self._source]
        for source in sources:
            await source.forward.close()

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        # Another site's name that leads here would make that site's scripts readers of this page.
        if request.host.rpartition(":")[0] not in ("127.0.0.1", "localhost"):
            raise web.HTTPForbidden(text="The page answers to this machine only.")
        try:
            response = await handler(request)
        except (ClientError, KubeError) as error:
            raise web.HTTPBadGateway(text=str(error)) from error
        response.headers.update(HEADERS)
        return response

    async def _get_fleet_page(self, request: web.Request) -> web.Response:
        return _page(live_fleet_page())

    async def _get_fleet(self, request: web.Request) -> web.Response:
        assert isinstance(self._source, Fleet)
        return _json(await asyncio.to_thread(self._source.view))

    async def _get_job_page(self, request: web.Request) -> web.Response:
        source = await self._job(request)
        if not (await asyncio.to_thread(source.cluster)).is_finished:
            return _page(live_page())
        async with self._making:
            if source not in self._reports:
                self._reports[source] = await asyncio.to_thread(source.report)
        return web.Response(body=self._reports[source], content_type="text/html", charset="utf-8")

    async def _get_cluster(self, request: web.Request) -> web.Response:
        return _json(await asyncio.to_thread((await self._job(request)).cluster))

    async def _job(self, request: web.Request) -> JobSource:
        if isinstance(self._source, JobSource):
            return self._source
        key = request.match_info["namespace"], request.match_info["name"]
        if key not in self._jobs:
            self._jobs[key] = await asyncio.to_thread(self._source.job, *key)
        return self._jobs[key]

    async def _get_from_coordinator(self, request: web.Request) -> web.Response:
        assert self._client is not None, "the server runs"
        forward = (await self._job(request)).forward
        tag = request.headers.get(hdrs.IF_NONE_MATCH)
        address = f"http://127.0.0.1:{await forward.port()}{request.path[request.path.index('/api/') :]}"
        try:
            async with self._client.get(address, headers={hdrs.IF_NONE_MATCH: tag} if tag else {}) as answer:
                kept = {name: answer.headers[name] for name in _KEPT_HEADERS if name in answer.headers}
                return web.Response(status=answer.status, body=await answer.read(), headers=kept)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            # What forwards to a pod that is gone never finds its successor.
            await forward.close()
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


def _page(document: Document) -> web.Response:
    headers = {"Content-Security-Policy": document.policy}
    return web.Response(text=document.html, content_type="text/html", headers=headers)


def _json(view: PageModel) -> web.Response:
    return web.Response(text=view.model_dump_json(), content_type="application/json")
