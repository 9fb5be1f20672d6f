"""A local copy stays true through ended, expired and refused watches."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from devcluster.tests.builders import Json

from longshore_devcluster.client.informer import Informer
from longshore_kube.access import Access
from longshore_kube.client import Client
from longshore_kube.resources import CONFIG_MAPS


def config_map(name: str, version: int, **data: str) -> Json:
    meta = {"namespace": "default", "name": name, "resourceVersion": str(version), "uid": f"uid-{name}"}
    return {"metadata": meta, "data": data}


@dataclass
class Script:
    """An API server that answers lists and watches as scripted, and notes what it was asked."""

    lists: list[tuple[list[Json], str]] = field(default_factory=list)
    watches: list[list[Json]] = field(default_factory=list)
    watched_from: list[str] = field(default_factory=list)
    page_size: int = 500

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One list or watch."""
        if request.query.get("watch") != "true":
            return self._list(request)
        self.watched_from.append(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        if not self.watches:
            await asyncio.Event().wait()
        for event in self.watches.pop(0):
            await response.write(json.dumps(event).encode() + b"\n")
        return response

    def _list(self, request: web.Request) -> web.Response:
        start = int(request.query.get("continue", "0"))
        items, version = self.lists[0]
        end = start + self.page_size
        more = str(end) if end < len(items) else ""
        if not more and len(self.lists) > 1:
            self.lists.pop(0)
        return web.json_response(
            {"items": items[start:end], "metadata": {"resourceVersion": version, "continue": more}}
        )


@pytest.fixture
async def script() -> Script:
    return Script()


@pytest.fixture
async def informer(script: Script) -> AsyncIterator[Informer]:
    application = web.Application()
    application.router.add_get("/api/v1/configmaps", script.answer)
    async with TestServer(application) as server:
        access = Access(str(server.make_url("")).rstrip("/"))
        async with Client(access, "test") as client:
            informer = Informer(client, CONFIG_MAPS)
            yield informer


Change = tuple[str | None, str | None]


async def changes(informer: Informer, num_changes: int) -> list[Change]:
    """Run the informer until it has reported so many changes: (old, new) by name and version."""
    seen: list[Change] = []
    enough = asyncio.Event()

    def text(obj: Json | None) -> str | None:
        return None if obj is None else f"{obj['metadata']['name']}@{obj['metadata']['resourceVersion']}"

    def listen(old: Json | None, new: Json | None) -> None:
        seen.append((text(old), text(new)))
        if len(seen) >= num_changes:
            enough.set()

    informer.listen(listen)
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(enough.wait(), 30)
    task.cancel()
    return seen


def event(kind: str, obj: Json) -> Json:
    return {"type": kind, "object": obj}


EXPIRED = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}


async def test_list_then_watch(script: Script, informer: Informer) -> None:
    script.lists = [([config_map("a", 1)], "5")]
    script.watches = [
        [
            event("MODIFIED", config_map("a", 6)),
            event("ADDED", config_map("b", 7)),
            event("DELETED", config_map("a", 8)),
        ]
    ]

    assert await changes(informer, 4) == [(None, "a@1"), ("a@1", "a@6"), (None, "b@7"), ("a@8", None)]
    assert [obj["metadata"]["name"] for obj in informer] == ["b"]
    assert script.watched_from[0] == "5"


async def test_large_collections_come_in_pages(script: Script, informer: Informer) -> None:
    script.page_size = 2
    script.lists = [([config_map(name, 1) for name in "abcde"], "5")]

    assert len(await changes(informer, 5)) == 5


async def test_ended_watch_goes_on_from_the_last_version_seen(script: Script, informer: Informer) -> None:
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
    script.lists = [([], "5")]
    script.watches = [[event("ADDED", config_map("a", 6)), bookmark], [event("ADDED", config_map("b", 10))]]

    assert await changes(informer, 2) == [(None, "a@6"), (None, "b@10")]
    assert script.watched_from[:2] == ["5", "9"]


async def test_expired_watch_is_turned_into_the_changes_that_were_missed(script: Script, informer: Informer) -> None:
    script.lists = [
        ([config_map("gone", 1), config_map("kept", 2), config_map("changed", 3)], "5"),
        ([config_map("kept", 2), config_map("changed", 30), config_map("new", 31)], "40"),
    ]
    script.watches = [[EXPIRED]]

    seen = await changes(informer, 6)

    assert sorted(seen[3:], key=str) == sorted(
        [("gone@1", None), ("changed@3", "changed@30"), (None, "new@31")], key=str
    )
    assert {obj["metadata"]["name"] for obj in informer} == {"kept", "changed", "new"}


async def test_object_recreated_while_nobody_watched_is_a_deletion_and_an_addition(
    script: Script, informer: Informer
) -> None:
    recreated = config_map("a", 30)
    recreated["metadata"]["uid"] = "another"
    script.lists = [([config_map("a", 1)], "5"), ([recreated], "40")]
    script.watches = [[EXPIRED]]

    assert (await changes(informer, 3))[1:] == [("a@1", None), (None, "a@30")]


async def test_own_writes_count_at_once_and_are_not_reported_twice(script: Script, informer: Informer) -> None:
    script.lists = [([], "5")]
    script.watches = [[event("ADDED", config_map("mine", 6)), event("ADDED", config_map("other", 7))]]
    informer.observe(config_map("mine", 6))

    assert await changes(informer, 2) == [(None, "mine@6"), (None, "other@7")]


async def test_objects_larger_than_a_line_buffer_arrive(script: Script, informer: Informer) -> None:
    script.lists = [([], "5")]
    script.watches = [[event("ADDED", config_map("big", 6, text="x" * 900_000))]]

    await changes(informer, 1)

    found = informer.get("default", "big")
    assert found is not None
    assert len(found["data"]["text"]) == 900_000
