"""What is too large or too deep to be read is neither kept nor the end of the others."""

import asyncio
from typing import Any

from aiohttp import web

from longshore_kube.client import METADATA_LIST_TYPE, METADATA_TYPE
from longshore_operator.rljob_watch import JobNews, rljob_session, watch_jobs
from tests.contract.kube_client.script import Script, event, stream
from tests.contract.operator.test_client_faults import client_of

RLJOBS = "/apis/longshore.dev/v1alpha1/rljobs"


async def test_jobs_are_listed_and_watched_without_what_they_hold() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({})

    script = Script(answer, answer, answer)
    async with client_of(script) as kube, await rljob_session(kube.client.access) as session:
        for path in (f"{RLJOBS}?limit=16", f"{RLJOBS}?watch=true", "/apis/longshore.dev/v1alpha1"):
            await (await session.get(kube.client.access.server + path)).read()
    accepted = [request.headers["Accept"] for request in script.requests]
    assert accepted == [METADATA_LIST_TYPE, METADATA_TYPE, "*/*"]


async def test_a_list_without_jobs_has_items_for_kopf() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"metadata": {"resourceVersion": "7"}, "items": None})

    async with client_of(Script(answer)) as kube, await rljob_session(kube.client.access) as session:
        response = await session.get(f"{kube.client.access.server}{RLJOBS}?limit=16")
        assert (await response.json())["items"] == []


async def test_jobs_are_listed_sixteen_at_a_time_and_told_apart_from_changes() -> None:
    """180 jobs of a megabyte each, in one answer, would be more memory than the operator has."""
    names = [f"job-{index}" for index in range(40)]
    change = event("MODIFIED", partial("job-7", version="8"))
    limits, listed, changes, arrived = [], set(), [], asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path != RLJOBS:
            return web.json_response(DISCOVERY.get(request.path, {}), status=200 if request.path in DISCOVERY else 404)
        if "watch" in request.query:
            return await stream(change, stays_open=True)(request)
        limits.append(request.query["limit"])
        first = int(request.query.get("continue") or 0)
        until = first + int(request.query["limit"])
        metadata = {"resourceVersion": "7", "continue": str(until) if until < len(names) else ""}
        return web.json_response({"metadata": metadata, "items": [partial(name) for name in names[first:until]]})

    def wake(key: tuple[str, str], news: JobNews) -> None:
        if news.is_listed:
            listed.add(key[1])
        else:
            changes.append((key[1], news.resource_version))
            arrived.set()

    async with client_of(Script(*[answer] * 100)) as kube:
        stop = asyncio.Event()
        watching = asyncio.create_task(watch_jobs(kube, None, wake, stop))
        async with asyncio.timeout(60):
            await arrived.wait()
            stop.set()
            await watching
    assert limits == ["16"] * 3
    assert changes == [("job-7", "8")]
    assert listed | {"job-7"} == set(names), "news of one job that arrive together are one"


def partial(name: str, version: str = "1") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "team", "uid": name, "resourceVersion": version, "generation": 1}
    return {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata}


RESOURCE = {
    "name": "rljobs",
    "singularName": "rljob",
    "kind": "RLJob",
    "namespaced": True,
    "verbs": ["list", "watch", "patch"],
}
DISCOVERY: dict[str, Any] = {  # kopf asks for it first
    "/apis/longshore.dev/v1alpha1": {"groupVersion": "longshore.dev/v1alpha1", "resources": [RESOURCE]},
    "/apis": {
        "groups": [
            {
                "name": "longshore.dev",
                "versions": [{"groupVersion": "longshore.dev/v1alpha1", "version": "v1alpha1"}],
                "preferredVersion": {"groupVersion": "longshore.dev/v1alpha1", "version": "v1alpha1"},
            }
        ]
    },
    "/api": {"versions": ["v1"]},
    "/api/v1": {
        "resources": [
            {
                "name": "namespaces",
                "singularName": "",
                "kind": "Namespace",
                "namespaced": False,
                "verbs": ["list", "watch"],
            }
        ]
    },
}
