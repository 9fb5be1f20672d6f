"""The operator's client and its view of pods, where the API server answers something else than success."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from longshore_kube.errors import ApiError
from longshore_operator.identity import Key
from longshore_operator.kube import KubeClient
from longshore_operator.pod_informer import PodInformer
from tests.contract.kube_client.script import Script, access_to, event, failure, page, stream

KEY = ("team", "demo")


def pod(name: str, version: int, **metadata: Any) -> dict[str, Any]:
    labels = {"longshore.dev/job": "demo", "longshore.dev/component": "worker", "longshore.dev/attempt": "1"}
    owner = {"apiVersion": "longshore.dev/v1alpha1", "kind": "RLJob", "name": "demo", "uid": "1", "controller": True}
    own: dict[str, Any] = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": str(version)}
    own["ownerReferences"] = [owner]
    return {"metadata": own | {"labels": labels} | metadata, "spec": {}, "status": {"phase": "Pending"}}


@asynccontextmanager
async def client_of(script: Script) -> AsyncIterator[KubeClient]:
    async with access_to(script) as access, KubeClient(access) as kube:
        yield kube


@asynccontextmanager
async def informer_of(script: Script) -> AsyncIterator[tuple[PodInformer, "asyncio.Queue[Key]"]]:
    changes: asyncio.Queue[Key] = asyncio.Queue()
    async with client_of(script) as kube:
        informer = PodInformer(kube, None, *3 * (changes.put_nowait,))
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


class TestInformer:
    async def test_a_damaged_pod_does_not_stop_the_others(self) -> None:
        damaged = pod("demo-poet-0", 6)
        script = Script(
            page([], 5), stream(event("ADDED", damaged), event("ADDED", pod("demo-worker-0", 7)), stays_open=True)
        )
        async with informer_of(script) as (informer, changes):
            await until_pods_are(informer, changes, "demo-worker-0")
        assert script.queries[1]["labelSelector"] == "longshore.dev/job"

    async def test_an_accepted_delete_is_known_at_once_and_not_taken_back_by_an_older_event(self) -> None:
        go_on = asyncio.Event()

        async def watch(request: web.Request) -> web.StreamResponse:
            await go_on.wait()
            return await stream(
                event("MODIFIED", pod("demo-worker-0", 6)), event("ADDED", pod("demo-worker-1", 7)), stays_open=True
            )(request)

        async with informer_of(Script(page([pod("demo-worker-0", 1)], 5), watch)) as (informer, changes):
            await until_pods_are(informer, changes, "demo-worker-0")
            informer.mark_deleting(KEY, "demo-worker-0", "uid-demo-worker-0")
            assert informer.pods(KEY)[0].deleting
            go_on.set()
            await until_pods_are(informer, changes, "demo-worker-0", "demo-worker-1")
            assert informer.pods(KEY)[0].deleting
