"""What a command follows: everything that exists, every change, and what vanished while nobody looked."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from longshore_client import jobs
from longshore_client import kube as module
from longshore_client.errors import ClientError
from longshore_client.explained import explain
from longshore_client.kube import Change, Kube
from longshore_kube.blocking import Blocking
from longshore_kube.errors import KubeError
from longshore_kube.resources import Json
from tests.contract.kube_client.script import Script, access_to, event, failure, found, missing, page, stream

GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "old"}}


def job(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"uid": name, "name": name, "resourceVersion": str(version)}}


async def with_server(script: Script, use: Callable[[Kube], None]) -> None:
    """Use it in another thread, as commands do."""
    async with access_to(script) as access:
        api = Blocking(access, "test")
        try:
            await asyncio.to_thread(use, Kube(api, "team"))
        finally:
            await asyncio.to_thread(api.close)


async def watched(script: Script, enough: Callable[[list[Change]], bool], *known: Json) -> list[str]:
    """Changes until there are enough."""
    seen: list[Change] = []

    def follow(kube: Kube) -> None:
        for change in kube.watch(kube.jobs_path(), "", known=known, timeout_s=30.0):
            seen.append(change)
            if enough(seen):
                return

    await with_server(script, follow)
    return [f"{kind} {item['metadata']['name']}" for kind, item in seen]


def after(num_changes: int) -> Callable[[list[Change]], bool]:
    return lambda seen: len(seen) == num_changes


async def test_what_exists_comes_first_and_then_what_changes() -> None:
    script = Script(page([job("a", 1)], 5), stream(event("MODIFIED", job("a", 6)), event("DELETED", job("a", 7))))
    assert await watched(script, after(3)) == ["ADDED a", "MODIFIED a", "DELETED a"]


async def test_what_vanished_while_the_watch_was_broken_is_reported() -> None:
    script = Script(
        page([job("a", 1), job("b", 2)], 5), stream(GONE), page([job("b", 8), job("c", 9)], 9), stream(stays_open=True)
    )
    assert await watched(script, after(5)) == ["ADDED a", "ADDED b", "DELETED a", "MODIFIED b", "ADDED c"]


async def test_what_the_caller_has_seen_and_is_gone_by_now_is_reported() -> None:
    script = Script(page([job("b", 8), job("c", 9)], 9), stream(stays_open=True))
    seen = await watched(script, after(3), job("a", 1), job("b", 2))
    assert seen == ["DELETED a", "MODIFIED b", "ADDED c"]


async def test_deleting_ends_also_where_everything_goes_before_the_watch_begins() -> None:
    nothing_left, pod = page([], 9), job("demo-worker-0", 3)
    pod["metadata"]["ownerReferences"] = [{"uid": "demo"}]
    existing = [found(job("demo", 1)) for _ in range(3)]
    script = Script(*existing, nothing_left, page([pod], 5), nothing_left)
    await with_server(script, lambda kube: jobs.delete(kube, "demo"))
    assert [request.method for request in script.requests] == ["GET", "DELETE", "GET", "GET", "GET", "GET"]


async def test_deleting_waits_neither_for_a_new_job_of_the_name_nor_for_its_pods() -> None:
    new, pod = job("demo", 2), job("demo-worker-0", 3)
    new["metadata"]["uid"], pod["metadata"]["ownerReferences"] = "new", [{"uid": "new"}]
    script = Script(found(job("demo", 1)), found(new), page([pod], 5))
    await with_server(script, lambda kube: jobs.delete(kube, "demo", "demo"))
    assert [request.method for request in script.requests] == ["DELETE", "GET", "GET"]


async def test_a_job_is_not_deleted_in_place_of_another_one_of_its_name() -> None:
    with pytest.raises(ClientError, match="was deleted, and another one has its name now"):
        await with_server(Script(failure(409, "Conflict")), lambda kube: jobs.delete(kube, "demo", "earlier"))


async def test_a_job_is_not_resumed_in_place_of_another_one_of_its_name() -> None:
    later = found({**job("demo", 1), "spec": {}})
    with pytest.raises(ClientError, match="was deleted, and another one has its name now"):
        await with_server(Script(later), lambda kube: jobs.set_suspended(kube, "demo", "earlier", suspended=False))


async def test_deleting_ends_where_the_answer_shows_that_nothing_is_left() -> None:
    script = Script(found(job("demo", 1)), missing("demo"), page([], 9))
    await with_server(script, lambda kube: jobs.delete(kube, "demo", "demo"))


async def test_a_refusal_ends_it_at_once() -> None:
    with pytest.raises(KubeError) as caught:
        await watched(Script(page([], 5), failure(403, "Forbidden")), after(1))
    assert "Not allowed: said 403" in explain(caught.value).message


async def test_a_server_that_is_away_for_too_long_ends_it_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.0)
    with pytest.raises(KubeError) as caught:
        await watched(Script(page([], 5), stream(b"<html>\n")), after(1))
    assert "The API server cannot be understood: a watch was answered with" in explain(caught.value).message
