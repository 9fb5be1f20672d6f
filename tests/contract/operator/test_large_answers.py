"""What is too large or too deep to be read is neither kept nor the end of the others."""

import pytest
from aiohttp import web

from longshore_kube.client import METADATA_LIST_TYPE, METADATA_TYPE
from longshore_kube.errors import Unreadable
from longshore_operator.handlers import rljob_session
from tests.contract.kube_client.script import Script
from tests.contract.operator.test_client_faults import client_of

RLJOBS = "/apis/longshore.dev/v1alpha1/rljobs"


async def test_a_job_that_is_nested_too_deeply_is_said() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text='{"a":' * 50_000 + "1" + "}" * 50_000, content_type="application/json")

    async with client_of(Script(answer)) as kube:
        with pytest.raises(Unreadable, match="nested too deeply"):
            await kube.get("RLJob", "team", "demo")


async def test_jobs_are_listed_and_watched_without_what_they_hold() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({})

    script = Script(answer, answer, answer)
    async with client_of(script) as kube, await rljob_session(kube.client.access) as session:
        for path in (f"{RLJOBS}?limit=16", f"{RLJOBS}?watch=true", "/apis/longshore.dev/v1alpha1"):
            await (await session.get(kube.client.access.server + path)).read()
    accepted = [request.headers["Accept"] for request in script.requests]
    assert accepted == [METADATA_LIST_TYPE, METADATA_TYPE, "*/*"]
