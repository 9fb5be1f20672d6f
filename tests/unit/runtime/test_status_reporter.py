"""The newest report of the coordinator arrives, whatever became of those before."""

import asyncio
import json
from typing import Any

from aiohttp import web

from longshore.api.runtime_status import RuntimeStatus
from longshore_runtime.telemetry.status_reporter import StatusReporter
from tests.contract.kube_client.script import Answer, Script, access_to, failure, page


class Status(Script):
    """Keeps what was sent."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__(*answers)
        self.sent: list[dict[str, Any]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.sent.append(json.loads(await request.read()))
        return await super().handle(request)


async def reported(script: Status, *steps: int) -> list[int]:
    """The steps that arrive, one report after the other."""
    async with access_to(script) as access:
        reporter = StatusReporter(access, "team", "demo")
        for number, step in enumerate(steps, 1):
            reporter.report(RuntimeStatus(attempt=1, step=step))
            await script.until_requested(number)
        await asyncio.to_thread(reporter.close)
    return [body["status"]["runtime"]["step"] for body in script.sent]


async def test_a_report_is_applied_to_the_runtime_part_of_the_status() -> None:
    script = Status(page([], 1))
    assert await reported(script, 7) == [7]
    (request,), (sent,) = script.requests, script.sent
    assert (request.method, request.content_type) == ("PATCH", "application/apply-patch+yaml")
    assert request.path == "/apis/longshore.dev/v1alpha1/namespaces/team/rljobs/demo/status"
    assert dict(request.query) == {"fieldManager": "longshore-coordinator", "force": "true"}
    assert (sent["apiVersion"], sent["kind"], sent["metadata"]["name"]) == ("longshore.dev/v1alpha1", "RLJob", "demo")


async def test_a_report_that_is_refused_does_not_stop_later_ones() -> None:
    assert await reported(Status(failure(422, "Invalid"), page([], 1)), 7, 8) == [7, 8]
