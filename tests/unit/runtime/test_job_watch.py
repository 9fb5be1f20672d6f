"""The coordinator hears of every assignment, whatever the API server sends in between."""

import asyncio
import queue
from typing import Any

import pytest

from longshore.api.names import Component
from longshore_runtime.elastic.job_watch import JobWatch
from longshore_runtime.rollout.events import AssignmentChanged, Event
from tests.contract.kube_client.script import Answer, Script, access_to, event, failure, page, stream

LIMIT_S = 180.0
"""Longer than anything here takes."""


def job(epoch: int, uid: str = "job-uid") -> dict[str, Any]:
    metadata = {"name": "demo", "uid": uid, "resourceVersion": "7"}
    return {"metadata": metadata, "status": {"assignment": {"epoch": epoch}}}


def changed(*epochs: int) -> list[dict[str, Any]]:
    return [event("MODIFIED", job(epoch)) for epoch in epochs]


async def epochs(script: Script, count: int) -> list[int]:
    """What the driver hears, in its order."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    async with access_to(script) as access:
        watched = JobWatch(access, "team", "demo", "job-uid", events)
        try:
            received = [await asyncio.to_thread(events.get, timeout=LIMIT_S) for _ in range(count)]
        finally:
            await asyncio.to_thread(watched.close)
    assert events.empty()
    received_epochs = [event.assignment.epoch for event in received if isinstance(event, AssignmentChanged)]
    assert watched.newest().epoch == max(received_epochs)
    return received_epochs


async def test_every_epoch_is_heard_once_over_any_number_of_watches() -> None:
    script = Script(page([job(1)], 5), stream(*changed(1, 2)), stream(*changed(2, 1, 3), stays_open=True))
    assert await epochs(script, 3) == [1, 2, 3]
    assert {query["fieldSelector"] for query in script.queries} == {"metadata.name=demo"}


@pytest.mark.parametrize(
    "broken",
    [
        failure(410, "Expired"),
        failure(403, "Forbidden"),
        stream(b'{"type": "MODI'),
        stream(b"<html>\n"),
        stream(event("MODIFIED", {"metadata": {"resourceVersion": "6"}, "status": None})),
        stream({"kind": "Status"}),
    ],
    ids=["expired", "refused", "cut off", "not JSON", "an object without a status", "no event at all"],
)
async def test_whatever_breaks_a_watch_the_next_assignment_is_heard(broken: Answer) -> None:
    class Restarting(Script):
        """Answers every list the same way, and watches in their order."""

        async def handle(self, request: Any) -> Any:
            return await (super().handle(request) if "watch" in request.query else page([job(1)], 5)(request))

    assert await epochs(Restarting(broken, stream(*changed(2), stays_open=True)), 2) == [1, 2]


async def test_an_assignment_that_cannot_be_read_is_passed_over() -> None:
    assert await epochs(Script(page([job(-1)], 5), stream(*changed(2), stays_open=True)), 1) == [2]


async def test_where_pods_are_is_known_from_the_first_list_on() -> None:
    found = job(1)
    found["status"] |= {"rewards": {"addresses": ["10.0.0.1", ""]}, "environments": {"addresses": ["", "10.0.0.2"]}}
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    async with access_to(Script(page([found], 5), stream(stays_open=True))) as access:
        watched = JobWatch(access, "team", "demo", "job-uid", events)
        await asyncio.to_thread(events.get, timeout=LIMIT_S)
        assert [watched.address_of(Component.REWARD, index) for index in range(3)] == ["10.0.0.1", None, None]
        assert watched.address_of(Component.ENVIRONMENT, 1) == "10.0.0.2"
        await asyncio.to_thread(watched.close)


async def test_an_elastic_job_waits_until_it_knows_how_many_worker_pods_it_has() -> None:
    script = Script(page([job(0)], 5), stream(*changed(1), stays_open=True))
    async with access_to(script) as access:
        watched = JobWatch(access, "team", "demo", "job-uid", queue.SimpleQueue())
        try:
            first = await asyncio.to_thread(watched.first, LIMIT_S)
        finally:
            await asyncio.to_thread(watched.close)
    assert first.epoch == 1


async def test_an_elastic_job_waits_for_a_silent_api_server_no_longer_than_it_says() -> None:
    async with access_to(Script(*[failure(503)] * 100)) as access:
        watched = JobWatch(access, "team", "demo", "job-uid", queue.SimpleQueue())
        try:
            assert (await asyncio.to_thread(watched.first, 0.1)).epoch == 0
        finally:
            await asyncio.to_thread(watched.close)


async def test_a_coordinator_does_not_obey_another_job_of_its_name() -> None:
    later = [event("MODIFIED", job(9, "later-job")), event("MODIFIED", job(2))]
    assert await epochs(Script(page([job(8, "later-job")], 5), stream(*later, stays_open=True)), 1) == [2]
