"""Serve the page of a job, read-only. It has no password: anyone who can reach its address can read it."""

import asyncio
import hashlib
import ipaddress
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from aiohttp import hdrs, web

from longshore.api.contract import PAGE_PORT
from longshore.api.runtime_status import RuntimeStatus
from longshore.page.build import job_view
from longshore.page.document import live_page
from longshore.page.headers import HEADERS
from longshore.page.view import JobHead, PageModel
from longshore_runtime.cluster.served import Served
from longshore_runtime.page.files import JobFiles, SampleKind
from longshore_runtime.telemetry.status_reporter import StatusSink

_NEW_ROUNDS: Final = 10
"""Number of records read for one view: the loop that trains shares the interpreter with this server."""
_COMPRESSED_BYTES: Final = 10_000
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
T = TypeVar("T")


class LatestStatus:
    """A sink that keeps the newest status for the page, and passes every status on."""

    def __init__(self, sink: StatusSink) -> None:
        self._sink = sink
        self.status: RuntimeStatus | None = None

    def report(self, status: RuntimeStatus) -> None:
        self.status = status
        self._sink.report(status)

    def close(self) -> None:
        self._sink.close()


@dataclass(frozen=True)
class _RenderedView:
    """A view of the job as it was sent, with its version."""

    state: str
    """State of files and status when everything was read; empty: there is more to read."""
    tag: str
    body: bytes


class JobPage:
    """Answers of the server. Files are read in other threads, one at a time."""

    def __init__(self, job: JobHead, files: JobFiles, status: Callable[[], RuntimeStatus | None], *,
                 any_host: bool = False) -> None:  # fmt: skip
        """Prepare the page; `any_host`: requests may name any host, because something in front decides who comes in."""
        self._job = job
        self._files = files
        self._status = status
        self._any_host = any_host
        self._reading = threading.Lock()
        self._view: _RenderedView | None = None

    def application(self) -> web.Application:
        """Build the application; all of its routes are read-only."""
        application = web.Application(middlewares=[self._guard])
        application.router.add_get("/", self._page)
        application.router.add_get("/api/view", self._get_view)
        application.router.add_get("/api/cluster", self._get_cluster)
        application.router.add_get(r"/api/rounds/{step:\d{1,9}}", self._get_round)
        application.router.add_get(r"/api/{kind:samples|held-out}/{step:\d{1,9}}", self._get_heads)
        application.router.add_get(r"/api/{kind:samples|held-out}/{step:\d{1,9}}/{draw}", self._get_group)
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        # Another site's name that leads here would make that site's scripts readers of this page.
        if not self._any_host and not _is_address(request.host):
            raise web.HTTPForbidden(text="The page answers to addresses and to localhost only.")
        try:
            response = await handler(request)
        except FileNotFoundError:
            raise web.HTTPNotFound(text="The storage of the job does not hold this step any longer.") from None
        except ValueError as error:
            raise web.HTTPInternalServerError(text="What is kept of this step cannot be read.") from error
        response.headers.update(HEADERS)
        return response

    async def _page(self, request: web.Request) -> web.Response:
        page = live_page()
        headers = {"Content-Security-Policy": page.policy}
        return web.Response(text=page.html, content_type="text/html", headers=headers)

    async def _get_view(self, request: web.Request) -> web.Response:
        tag, body = await self._read(self._newest)
        if request.headers.get(hdrs.IF_NONE_MATCH) == tag:
            return web.Response(status=304, headers={hdrs.ETAG: tag})
        response = _json(body)
        response.headers[hdrs.ETAG] = tag
        return response

    async def _get_cluster(self, request: web.Request) -> web.Response:
        """Answer without conditions and events, which `longshore ui` adds: the coordinator may not list events."""
        return _json(b"null")

    async def _get_round(self, request: web.Request) -> web.Response:
        step = int(request.match_info["step"])
        return _json(await self._read(lambda: _dumped(self._files.round(step))))

    async def _get_heads(self, request: web.Request) -> web.Response:
        kind, step = SampleKind(request.match_info["kind"]), int(request.match_info["step"])
        return _json(await self._read(lambda: _dumped_all(self._files.heads(kind, step))))

    async def _get_group(self, request: web.Request) -> web.Response:
        kind, step = SampleKind(request.match_info["kind"]), int(request.match_info["step"])
        draw = request.match_info["draw"]
        groups = await self._read(lambda: self._files.groups(kind, step, draw))
        if not groups:
            raise web.HTTPNotFound(text="This step has no samples of that draw.")
        return _json(_dumped(groups[0]))

    async def _read(self, work: Callable[[], T]) -> T:
        def alone() -> T:
            with self._reading:
                return work()

        return await asyncio.to_thread(alone)

    def _newest(self) -> tuple[str, bytes]:
        """Return the view, built again if anything has changed. If many rounds are new, later calls read the rest."""
        status, files = self._status(), self._files
        state = repr((files.stamp(), status and status.model_dump_json()))
        if self._view is None or self._view.state != state:
            digests, are_all = files.digests(_NEW_ROUNDS)
            view = job_view(
                self._job,
                status,
                files.curves(),
                digests,
                files.round_steps(),
                files.sample_steps(SampleKind.TRAINING),
                files.sample_steps(SampleKind.HELD_OUT),
                time.time(),
            )
            tag = hashlib.sha256(f"{state} {len(digests)}".encode()).hexdigest()[:24]
            self._view = _RenderedView(state if are_all else "", f'"{tag}"', _dumped(view))
        return self._view.tag, self._view.body


def page_server(page: JobPage, hosts: Sequence[str], port: int = PAGE_PORT) -> Served:
    """Serve the page at these addresses of the pod, within a `with` block."""
    return Served("page", page.application(), hosts, port)


def page_hosts(pod_ip: str, *, is_open: bool) -> list[str]:
    """Return the addresses to listen on: that of port-forward, and the pod's if the installation lets others in.

    Pods of the embedded cluster share one machine, where each has a loopback address of its own.
    """
    if ipaddress.ip_address(pod_ip).is_loopback:
        return [pod_ip]
    return ["127.0.0.1", pod_ip] if is_open else ["127.0.0.1"]


def _is_address(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _json(body: bytes) -> web.Response:
    response = web.Response(body=body, content_type="application/json")
    if len(body) > _COMPRESSED_BYTES:
        response.enable_compression()
    return response


def _dumped(model: PageModel) -> bytes:
    return model.model_dump_json().encode()


def _dumped_all(models: Sequence[PageModel]) -> bytes:
    return b"[" + b",".join(_dumped(model) for model in models) + b"]"
