"""An API server that misbehaves: the client gets through, or says in one sentence what is wrong."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from longshore_kube import client as module
from longshore_kube.access import Access
from longshore_kube.client import PAGE_LIMIT, Client
from longshore_kube.errors import ApiError, Gone, KubeError, Unreachable, Unreadable
from longshore_kube.reflector import Changed, Listed, Reflector
from longshore_kube.resources import CONFIG_MAPS, PODS
from tests.contract.kube_client.script import Answer, Script, access_to, event, failure, page, stream

PATH = PODS.path("team")


def pod(name: str, version: int, **metadata: Any) -> dict[str, Any]:
    own = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": own | metadata}


@asynccontextmanager
async def client_of(script: Script) -> AsyncIterator[Client]:
    async with access_to(script) as access, Client(access, "test") as client:
        yield client


async def cut_off(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def silence(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("never")


class TestRetries:
    @pytest.mark.parametrize("passing", [failure(503), failure(500), failure(429), cut_off])
    async def test_trouble_that_passes_is_waited_out(self, passing: Answer) -> None:
        script = Script(passing, page([], 1))
        async with client_of(script) as client:
            assert await client.get(PODS, "demo", "team")
        assert len(script.requests) == 2

    @pytest.mark.parametrize("code", [409, 429, 503])
    @pytest.mark.parametrize("method", ["GET", "POST"])
    async def test_the_server_says_how_long_to_wait_and_did_nothing_until_then(self, code: int, method: str) -> None:
        script = Script(failure(code, **{"Retry-After": "1"}), page([], 1))
        async with client_of(script) as client:
            began_s = asyncio.get_running_loop().time()
            await client.request(method, PATH, body={} if method == "POST" else None)
            assert asyncio.get_running_loop().time() - began_s >= 1

    async def test_lasting_trouble_is_said_after_a_few_tries(self) -> None:
        async with client_of(Script(*[failure(503)] * 4)) as client:
            with pytest.raises(ApiError, match="said 503"):
                await client.get(PODS, "demo", "team")

    @pytest.mark.parametrize("code", [403, 409])
    async def test_a_refusal_is_final(self, code: int) -> None:
        async with client_of(Script(failure(code))) as client:
            with pytest.raises(ApiError, match=f"said {code}"):
                await client.replace(PODS, pod("a", 1))

    async def test_a_create_that_may_have_happened_is_repeated_only_under_a_name(self) -> None:
        """Otherwise there would be two objects."""
        async with client_of(Script(cut_off)) as client:
            with pytest.raises(Unreachable):
                await client.create(PODS, {"metadata": {"generateName": "copy-"}}, "team")
        async with client_of(Script(cut_off, failure(409, "AlreadyExists"))) as client:
            with pytest.raises(ApiError) as caught:
                await client.create(PODS, pod("a", 1), "team")
        assert caught.value.reason == "AlreadyExists"


class TestSentences:
    async def test_nobody_listens(self) -> None:
        async with Client(Access("http://127.0.0.1:1"), "test") as client:
            with pytest.raises(Unreachable) as caught:
                await client.get(PODS, "demo", "team")
        assert str(caught.value) == "http://127.0.0.1:1 does not answer: Connection refused"

    async def test_no_answer_comes(self) -> None:
        async with access_to(Script(*[silence] * 4)) as access, Client(access, "test", request_timeout_s=0.2) as client:
            with pytest.raises(Unreachable, match="does not answer: it took longer than"):
                await client.get(PODS, "demo", "team")

    @pytest.mark.parametrize(
        ("answer", "error", "sentence"),
        [
            ({"status": 403, "text": "<html>blocked by the proxy</html>"}, ApiError, "blocked by the proxy"),
            ({"status": 405}, ApiError, "the API server answers 405"),
            *(({"text": text}, Unreadable, "is no object of Kubernetes") for text in ("<html>", "[]", "3", "")),
            ({"text": '{"a":' * 50_000 + "1" + "}" * 50_000}, Unreadable, "nested too deeply"),
        ],
        ids=["of a proxy", "without a message", "html", "a list", "a number", "nothing", "nested too deeply"],
    )
    async def test_an_answer_that_is_none_of_kubernetes(
        self, answer: dict[str, Any], error: type[KubeError], sentence: str
    ) -> None:
        async def answered(_: web.Request) -> web.Response:
            return web.Response(**answer)

        async with client_of(Script(answered)) as client:
            with pytest.raises(error, match=sentence):
                await client.get(PODS, "demo", "team")


class Paged(Script):
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


class TestLists:
    async def test_pages_hold_as_many_objects_as_fit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 20_000)
        large = [pod(f"large-{index}", 1, annotations={"a": "x" * 15_000}) for index in range(4)]
        small = [pod(f"small-{index}", 1, annotations={"a": "x" * 100}) for index in range(50)]
        server = Paged(*small[:25], *large, *small[25:])
        async with client_of(server) as client:
            listed = await client.items(PATH, labels="a=b")
        assert [one["metadata"]["name"] for one in listed] == [one["metadata"]["name"] for one in server._items]
        limits = [int(query["limit"]) for query in server.queries]
        assert (limits[0], min(limits)) == (PAGE_LIMIT, 1)
        assert limits[-1] > 1, "pages grow again"

    async def test_one_object_that_never_fits_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 2_000)
        async with client_of(Paged(pod("huge", 1, annotations={"a": "x" * 15_000}))) as client:
            with pytest.raises(Unreadable, match="larger than"):
                await client.items(PATH)


@asynccontextmanager
async def followed(script: Script, **options: Any) -> AsyncIterator["asyncio.Queue[str]"]:
    """News of a reflector, as short words."""
    news: asyncio.Queue[str] = asyncio.Queue()

    def name(obj: dict[str, Any]) -> str | None:
        return None if "unwanted" in obj["metadata"]["name"] else str(obj["metadata"]["name"])

    async def follow(client: Client) -> None:
        async for one in Reflector(client, PATH, name, **options).changes():
            match one:
                case Listed():
                    news.put_nowait(f"listed {' '.join(one.items)}".rstrip())
                case Changed():
                    news.put_nowait(f"{one.kind} {one.item}")

    async with client_of(script) as client:
        task = asyncio.create_task(follow(client))
        try:
            yield news
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def received(news: "asyncio.Queue[str]", *expected: str) -> None:
    async with asyncio.timeout(20):
        assert [await news.get() for _ in expected] == list(expected)


GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "old"}}


class TestFollowing:
    async def test_a_collection_is_listed_in_pages_and_then_watched(self) -> None:
        script = Script(
            page([pod("a", 1), pod("unwanted", 1)], 5, "more"),
            page([pod("b", 2)], 5),
            stream(
                event("ADDED", pod("c", 6)),
                event("ADDED", pod("unwanted-2", 6)),
                event("DELETED", pod("a", 7)),
                stays_open=True,
            ),
        )
        async with followed(script, labels="app=demo") as news:
            await received(news, "listed a b", "ADDED c", "DELETED a")
        assert [query.get("continue") for query in script.queries[:2]] == [None, "more"]
        assert script.queries[2]["resourceVersion"] == "5"
        assert {query["labelSelector"] for query in script.queries} == {"app=demo"}

    async def test_an_ended_watch_is_resumed_where_it_ended(self) -> None:
        bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
        script = Script(
            page([], 5),
            stream(event("ADDED", pod("a", 6)), bookmark),
            stream(event("ADDED", pod("b", 10)), stays_open=True),
        )
        async with followed(script) as news:
            await received(news, "listed", "ADDED a", "ADDED b")
        assert script.queries[2]["resourceVersion"] == "9"

    async def test_a_watch_that_is_cut_within_an_event_loses_nothing(self) -> None:
        whole = json.dumps(event("ADDED", pod("b", 7))).encode()
        script = Script(
            page([], 5), stream(event("ADDED", pod("a", 6)), whole[:40]), stream(whole + b"\n", stays_open=True)
        )
        async with followed(script) as news:
            await received(news, "listed", "ADDED a", "ADDED b")
        assert script.queries[2]["resourceVersion"] == "6"

    async def test_a_connection_that_breaks_is_resumed(self) -> None:
        async def broken(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(json.dumps(event("ADDED", pod("a", 6))).encode() + b"\n")
            return await cut_off(request)

        script = Script(page([], 5), broken, stream(event("ADDED", pod("b", 7)), stays_open=True))
        async with followed(script) as news:
            await received(news, "listed", "ADDED a", "ADDED b")
        assert script.queries[2]["resourceVersion"] == "6"

    @pytest.mark.parametrize("expired", [stream(GONE), failure(410, "Expired")], ids=["within", "at once"])
    async def test_an_expired_version_means_a_new_list(self, expired: Answer) -> None:
        script = Script(page([pod("a", 1)], 5), expired, page([pod("b", 8)], 9), stream(stays_open=True))
        async with followed(script) as news:
            await received(news, "listed a", "listed b")
            await script.until_requested(4)
        assert script.queries[3]["resourceVersion"] == "9"

    async def test_a_list_that_expires_between_pages_begins_again(self) -> None:
        script = Script(
            page([pod("a", 1)], 5, "more"), failure(410, "Expired"), page([pod("b", 6)], 7), stream(stays_open=True)
        )
        async with followed(script) as news:
            await received(news, "listed b")

    async def test_lost_rights_are_waited_out(self) -> None:
        script = Script(page([], 5), failure(403), stream(event("ADDED", pod("a", 6)), stays_open=True))
        async with followed(script) as news:
            await received(news, "listed", "ADDED a")

    async def test_a_follower_may_give_up(self) -> None:
        def give_up(error: KubeError, silence_s: float) -> None:
            raise error

        async with client_of(Script(page([], 5), failure(403))) as client:
            with pytest.raises(ApiError, match="said 403"):
                async for _ in Reflector(client, PATH, dict, on_error=give_up).changes():
                    pass

    async def test_an_event_may_be_larger_than_any_line_buffer(self) -> None:
        large = pod("a", 6, annotations={"example.com/large": "x" * 2_000_000})
        async with followed(Script(page([], 5), stream(event("ADDED", large), stays_open=True))) as news:
            await received(news, "listed", "ADDED a")

    @pytest.mark.parametrize(
        "line",
        [b"<html>\n", b"[]\n", b"{}\n", b'{"type": "ADDED", "object": {"metadata": {}}}\n',
         b'{"type": "ADDED", "object": 3}\n', b'{"type": "ERROR", "object": null}\n'],
    )  # fmt: skip
    async def test_what_is_no_event_is_answered_with_a_new_list(self, line: bytes) -> None:
        error_messages: list[str] = []
        script = Script(page([], 5), stream(line), page([pod("a", 6)], 7), stream(stays_open=True))
        async with followed(script, on_error=lambda error, _: error_messages.append(str(error))) as news:
            await received(news, "listed", "listed a")
        assert "a watch was answered with what is no event" in error_messages[0]

    async def test_a_watch_of_an_unknown_version_raises_gone(self) -> None:
        async with client_of(Script(failure(410, "Expired"))) as client:
            with pytest.raises(Gone):
                async for _ in client.watch(CONFIG_MAPS.path(), "1"):
                    pass
