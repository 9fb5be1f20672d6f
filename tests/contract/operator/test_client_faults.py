"""An API server that misbehaves: the client and the informer get through, or say what is wrong."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from longshore_operator.informer import Key, PodInformer
from longshore_operator.kube import ApiError, Kube
from longshore_operator.kubeconfig import Access

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
KEY = ("team", "demo")


def pod(name: str, version: int, **metadata: Any) -> dict[str, Any]:
    labels = {"longshore.dev/job": "demo", "longshore.dev/component": "worker", "longshore.dev/attempt": "1"}
    own = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": own | {"labels": labels} | metadata, "spec": {}, "status": {"phase": "Pending"}}


def page(items: list[dict[str, Any]], version: int, continuation: str = "") -> Answer:
    metadata = {"resourceVersion": str(version), "continue": continuation}

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"items": items, "metadata": metadata})

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
        self._heard = asyncio.Condition()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        async with self._heard:
            self.requests.append(request)
            self._heard.notify_all()
        assert self._answers, f"an unexpected request: {request.path_qs}"
        return await self._answers.pop(0)(request)

    async def until_asked(self, num_requests: int) -> None:
        async with asyncio.timeout(20), self._heard:
            await self._heard.wait_for(lambda: len(self.requests) >= num_requests)

    @property
    def queries(self) -> list[dict[str, str]]:
        return [dict(request.query) for request in self.requests]


@asynccontextmanager
async def client_of(script: Script, **access: Any) -> AsyncIterator[Kube]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", script.handle)
    async with TestServer(app) as server, Kube(Access(str(server.make_url("")).rstrip("/"), **access)) as kube:
        yield kube


@asynccontextmanager
async def informer_of(script: Script) -> AsyncIterator[tuple[PodInformer, "asyncio.Queue[Key]"]]:
    changes: asyncio.Queue[Key] = asyncio.Queue()
    async with client_of(script) as kube:
        informer = PodInformer(kube, None, changes.put_nowait)
        task = asyncio.create_task(informer.run())
        try:
            yield informer, changes
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until_pods_are(informer: PodInformer, changes: "asyncio.Queue[Key]", *expected: str) -> None:
    async with asyncio.timeout(20):
        while [view.name for view in informer.pods(KEY)] != list(expected):
            await changes.get()


class TestCalls:
    async def test_passing_trouble_is_retried(self) -> None:
        script = Script(failure(503), failure(500), page([], 1))
        async with client_of(script) as kube:
            assert await kube.get("RLJob", "team", "demo") is not None
        assert len(script.requests) == 3

    async def test_the_server_says_how_long_to_wait(self) -> None:
        script = Script(failure(429, "TooManyRequests", **{"Retry-After": "1"}), page([], 1))
        async with client_of(script) as kube:
            began_s = asyncio.get_running_loop().time()
            await kube.get("RLJob", "team", "demo")
            assert asyncio.get_running_loop().time() - began_s >= 1

    async def test_lasting_trouble_is_told_after_a_few_tries(self) -> None:
        script = Script(*[failure(503)] * 4)
        async with client_of(script) as kube:
            with pytest.raises(ApiError, match="said 503"):
                await kube.get("RLJob", "team", "demo")

    async def test_a_refusal_is_final(self) -> None:
        script = Script(failure(403, "Forbidden"))
        async with client_of(script) as kube:
            with pytest.raises(ApiError, match="said 403"):
                await kube.get("RLJob", "team", "demo")
        assert len(script.requests) == 1

    async def test_an_answer_that_is_no_json_is_quoted(self) -> None:
        async def proxy_error(_: web.Request) -> web.Response:
            return web.Response(status=403, text="<html>blocked by the proxy</html>")

        async with client_of(Script(proxy_error)) as kube:
            with pytest.raises(ApiError, match="blocked by the proxy"):
                await kube.get("RLJob", "team", "demo")

    async def test_a_create_that_finds_the_name_taken_is_no_error(self) -> None:
        manifest = {"kind": "Pod", "metadata": {"name": "demo", "namespace": "team"}}
        async with client_of(Script(failure(409, "AlreadyExists"))) as kube:
            assert await kube.create(manifest) is None

    @pytest.mark.parametrize("code", [404, 409])
    async def test_deleting_what_is_gone_or_another_by_now_is_no_error(self, code: int) -> None:
        script = Script(failure(code))
        async with client_of(script) as kube:
            await kube.delete("Pod", "team", "demo", "uid")
        assert len(script.requests) == 1

    @pytest.mark.parametrize("code", [404, 409])
    async def test_labelling_what_is_gone_or_another_by_now_is_no_error(self, code: int) -> None:
        script = Script(failure(code))
        async with client_of(script) as kube:
            await kube.label("Pod", "team", "demo", "uid", {"longshore.dev/role": "trainer"})
        (request,) = script.requests
        assert (request.method, request.content_type) == ("PATCH", "application/merge-patch+json")

    async def test_labels_that_are_refused_are_an_error(self) -> None:
        async with client_of(Script(failure(403, "Forbidden"))) as kube:
            with pytest.raises(ApiError, match="said 403"):
                await kube.label("Pod", "team", "demo", "uid", {"longshore.dev/role": "trainer"})

    async def test_a_rotated_token_is_used_from_the_next_request_on(self, tmp_path: Path) -> None:
        script, token = Script(page([], 1), page([], 1)), tmp_path / "token"
        token.write_text("first")
        async with client_of(script, token_file=token) as kube:
            await kube.get("RLJob", "team", "demo")
            token.write_text("second")
            await kube.get("RLJob", "team", "demo")
        sent = [request.headers["Authorization"] for request in script.requests]
        assert sent == ["Bearer first", "Bearer second"]


class TestInformer:
    async def test_pods_are_listed_in_pages_and_then_watched(self) -> None:
        script = Script(
            page([pod("a", 1)], 5, "more"),
            page([pod("b", 2)], 5),
            stream(event("ADDED", pod("c", 6)), event("DELETED", pod("a", 7)), stays_open=True),
        )
        async with informer_of(script) as (informer, changes):
            await until_pods_are(informer, changes, "b", "c")
        assert [query.get("continue") for query in script.queries[:2]] == [None, "more"]
        assert script.queries[2]["resourceVersion"] == "5"
        assert "app.kubernetes.io/managed-by=longshore" in script.queries[2]["labelSelector"]

    async def test_an_ended_stream_is_resumed_where_it_ended(self) -> None:
        bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
        script = Script(
            page([], 5),
            stream(event("ADDED", pod("a", 6)), bookmark),
            stream(event("ADDED", pod("b", 10)), stays_open=True),
        )
        async with informer_of(script) as (informer, changes):
            await until_pods_are(informer, changes, "a", "b")
        assert script.queries[2]["resourceVersion"] == "9"

    async def test_a_stream_cut_within_an_event_loses_nothing(self) -> None:
        whole = json.dumps(event("ADDED", pod("b", 7))).encode()
        script = Script(
            page([], 5),
            stream(event("ADDED", pod("a", 6)), whole[:40]),
            stream(whole + b"\n", stays_open=True),
        )
        async with informer_of(script) as (informer, changes):
            await until_pods_are(informer, changes, "a", "b")
        assert script.queries[2]["resourceVersion"] == "6"

    @pytest.mark.parametrize("within_stream", [True, False])
    async def test_an_expired_version_means_a_new_list(self, within_stream: bool) -> None:
        gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "old"}}
        script = Script(
            page([pod("a", 1)], 5),
            stream(gone) if within_stream else failure(410, "Expired"),
            page([pod("b", 8)], 9),
            stream(stays_open=True),
        )
        async with informer_of(script) as (informer, changes):
            await until_pods_are(informer, changes, "b")
            await script.until_asked(4)
        assert script.queries[3]["resourceVersion"] == "9"

    async def test_a_list_that_expires_between_pages_begins_anew(self) -> None:
        script = Script(
            page([pod("a", 1)], 5, "more"), failure(410, "Expired"), page([pod("b", 6)], 7), stream(stays_open=True)
        )
        async with informer_of(script) as (informer, changes):
            await until_pods_are(informer, changes, "b")

    async def test_lost_rights_are_waited_out(self) -> None:
        script = Script(
            page([], 5),
            failure(403, "Forbidden"),
            stream(event("ADDED", pod("a", 6)), stays_open=True),
        )
        async with informer_of(script) as (informer, changes):
            await until_pods_are(informer, changes, "a")

    async def test_an_event_may_be_larger_than_any_line_buffer(self) -> None:
        large = pod("a", 6, annotations={"example.com/large": "x" * 2_000_000})
        async with informer_of(Script(page([], 5), stream(event("ADDED", large), stays_open=True))) as (
            informer,
            changes,
        ):
            await until_pods_are(informer, changes, "a")

    async def test_a_damaged_pod_does_not_stop_the_others(self) -> None:
        damaged = pod("bad", 6)
        damaged["metadata"]["labels"]["longshore.dev/attempt"] = "many"
        script = Script(page([], 5), stream(event("ADDED", damaged), event("ADDED", pod("a", 7)), stays_open=True))
        async with informer_of(script) as (informer, changes):
            await until_pods_are(informer, changes, "a")

    async def test_an_accepted_delete_is_known_at_once_and_not_taken_back_by_an_older_event(self) -> None:
        go_on = asyncio.Event()

        async def watch(request: web.Request) -> web.StreamResponse:
            await go_on.wait()
            return await stream(event("MODIFIED", pod("a", 6)), event("ADDED", pod("b", 7)), stays_open=True)(request)

        async with informer_of(Script(page([pod("a", 1)], 5), watch)) as (informer, changes):
            await until_pods_are(informer, changes, "a")
            informer.mark_deleting(KEY, "a", "uid-a")
            assert informer.pods(KEY)[0].deleting
            go_on.set()
            await until_pods_are(informer, changes, "a", "b")
            assert informer.pods(KEY)[0].deleting
