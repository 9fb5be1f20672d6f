"""An API server that answers as a test says, also with what no healthy one answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from longshore_kube.access import Access

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def page(items: list[dict[str, Any]], version: int, continuation: str = "") -> Answer:
    metadata = {"resourceVersion": str(version), "continue": continuation}

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"items": items, "metadata": metadata})

    return answer


def found(subject: dict[str, Any]) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(subject)

    return answer


def missing(name: str) -> Answer:
    """There is no object of this name."""

    async def answer(_: web.Request) -> web.Response:
        status = {"kind": "Status", "code": 404, "reason": "NotFound", "message": "gone", "details": {"name": name}}
        return web.json_response(status, status=404)

    return answer


def failure(code: int, reason: str = "", **headers: str) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        status = {"kind": "Status", "code": code, "reason": reason, "message": f"said {code}"}
        return web.json_response(status, status=code, headers=headers)

    return answer


def stream(*lines: bytes | dict[str, Any], stays_open: bool = False) -> Answer:
    """A watch that sends these and then ends, or is silent."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for line in lines:
            await response.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
        if stays_open:
            await asyncio.Event().wait()
        return response

    return answer


def event(kind: str, subject: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": subject}


class Script:
    """Answers requests in the given order, and keeps them."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.requests: list[web.Request] = []
        self._received = asyncio.Condition()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        async with self._received:
            self.requests.append(request)
            self._received.notify_all()
        assert self._answers, f"an unexpected request: {request.path_qs}"
        return await self._answers.pop(0)(request)

    @property
    def tokens(self) -> list[str]:
        """The Authorization of each request."""
        return [request.headers.get("Authorization", "") for request in self.requests]

    async def until_requested(self, num_requests: int) -> None:
        async with asyncio.timeout(20), self._received:
            await self._received.wait_for(lambda: len(self.requests) >= num_requests)

    @property
    def queries(self) -> list[dict[str, str]]:
        return [dict(request.query) for request in self.requests]


@asynccontextmanager
async def access_to(script: Script, **access: Any) -> AsyncIterator[Access]:
    """The scripted server, while it listens."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", script.handle)
    async with TestServer(app) as server:
        yield Access(str(server.make_url("")).rstrip("/"), **access)
