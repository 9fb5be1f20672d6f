"""What is too large or too deep to be read is neither kept nor the end of the others."""

from typing import Any

import pytest
from aiohttp import web

from longshore_operator import kube as module
from longshore_operator.handlers import rljob_session
from longshore_operator.kube import METADATA_LIST_TYPE, METADATA_TYPE, PAGE_LIMIT, Kube, Unreadable
from tests.contract.operator.test_client_faults import Script, client_of, pod

RLJOBS = "/apis/longshore.dev/v1alpha1/rljobs"


class Server(Script):
    """Lists what it has, page by page, whatever is asked for."""

    def __init__(self, *items: dict[str, Any]) -> None:
        super().__init__()
        self._items = items

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        first, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        end = min(first + limit, len(self._items))
        more = {"continue": str(end)} if end < len(self._items) else {}
        return web.json_response({"items": self._items[first:end], "metadata": {"resourceVersion": "1"} | more})


async def listed(kube: Kube) -> list[str]:
    return [item["metadata"]["name"] async for page in kube.pages("Pod", None, "a=b") for item in page["items"]]


async def test_pages_hold_as_many_objects_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 20_000)
    large = [pod(f"large-{index}", 1, annotations={"a": "x" * 15_000}) for index in range(4)]
    small = [pod(f"small-{index}", 1) for index in range(50)]
    server = Server(*small[:25], *large, *small[25:])
    async with client_of(server) as kube:
        names = await listed(kube)
    assert sorted(names) == sorted(one["metadata"]["name"] for one in (*small, *large))
    limits = [int(query["limit"]) for query in server.queries]
    assert (limits[0], min(limits)) == (PAGE_LIMIT, 1)
    assert limits[-1] > 1, "pages grow again"


async def test_one_object_that_never_fits_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 2_000)
    async with client_of(Server(pod("huge", 1, annotations={"a": "x" * 15_000}))) as kube:
        with pytest.raises(Unreadable, match="larger than"):
            await listed(kube)


async def test_an_object_that_is_nested_too_deeply_is_said() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text='{"a":' * 50_000 + "1" + "}" * 50_000, content_type="application/json")

    async with client_of(Script(answer)) as kube:
        with pytest.raises(Unreadable, match="nested too deeply"):
            await kube.get("RLJob", "team", "demo")


async def test_jobs_are_listed_and_watched_without_what_they_hold() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({})

    script = Script(answer, answer, answer)
    async with client_of(script) as kube, rljob_session(kube._access) as session:
        for path in (f"{RLJOBS}?limit=16", f"{RLJOBS}?watch=true", "/apis/longshore.dev/v1alpha1"):
            await (await session.get(kube._access.server + path)).read()
    accepted = [request.headers["Accept"] for request in script.requests]
    assert accepted == [METADATA_LIST_TYPE, METADATA_TYPE, "*/*"]
