"""What `longshore watch` shows besides the job: its events, and why its storage is not there."""

import asyncio
import contextlib
import threading
from io import StringIO
from typing import Any

import pytest
from aiohttp import web
from rich.console import Console

from longshore_cli.watch import claims
from longshore_cli.watch.follow import follow
from longshore_client.kube import Kube
from longshore_kube.blocking import Blocking
from tests.contract.kube_client.script import Script, access_to, event, stream

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

NUM_LOOKS = 4
PATIENCE_S = 120.0
"""After which the job ends though nobody looked at its claim."""
SENTENCE = "The claim shared is not bound: there is no StorageClass 'fsat'"


def job(phase: str) -> dict[str, Any]:
    metadata = {"name": "demo", "namespace": "team", "uid": "7", "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"storage": {"claimName": "shared"}}, "status": {"phase": phase}}


CLAIM = {
    "metadata": {"name": "shared", "uid": "8", "resourceVersion": "1"},
    "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "fsat"},
    "status": {"phase": "Pending"},
}


def job_event(name: str, second: int) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "team", "uid": name, "resourceVersion": "1"}
    return {
        "metadata": metadata,
        "reason": name,
        "message": "it happened",
        "lastTimestamp": f"2026-01-01T00:00:{second:02}Z",
    }


class Cluster:
    """A job whose claim stays unbound; it ends after the claim was looked at several times.

    Or, with `events`, when they are watched.
    """

    def __init__(self, *, may_read_claims: bool = True, events: tuple[dict[str, Any], ...] = ()) -> None:
        self._may_read_claims = may_read_claims
        self._events = events
        self._num_looks = 0
        self._was_looked_at = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        kind = "claims" if "claims" in request.path else request.path.split("/")[-1]
        if kind == "demo":
            return web.json_response(job("Pending"))
        if kind == "claims" and not self._may_read_claims:
            self._was_looked_at.set()
            return web.json_response({"kind": "Status", "code": 403, "reason": "Forbidden"}, status=403)
        if "watch" not in request.query:
            items = {"rljobs": [job("Pending")], "claims": [CLAIM], "events": list(self._events)}.get(kind, [])
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})
        if kind == "rljobs":
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._was_looked_at.wait(), PATIENCE_S)
            return await stream(event("MODIFIED", job("Succeeded")), stays_open=True)(request)
        if kind == "events" and self._events:
            self._was_looked_at.set()
        if kind == "claims":
            self._num_looks += 1
            if self._num_looks > NUM_LOOKS:
                self._was_looked_at.set()
        return await stream(stays_open=True)(request)


async def watched(cluster: Cluster) -> str:
    """What `watch` prints until the job has ended."""
    shown = StringIO()
    async with asyncio.timeout(60), access_to(Script(*[cluster.answer] * 200)) as access:
        api = Blocking(access, "test")
        try:
            await asyncio.to_thread(follow, Kube(api, "team"), "demo", Console(file=shown, width=200))
        finally:
            await asyncio.to_thread(api.close)
        for thread in threading.enumerate():
            if thread.name.startswith("watch-"):
                await asyncio.to_thread(thread.join)
    return shown.getvalue()


async def test_earlier_events_are_printed_once_and_in_the_order_of_time() -> None:
    shown = await watched(Cluster(events=(job_event("Resumed", 3), job_event("Started", 1), job_event("Suspended", 2))))
    events = [line.partition(":")[0] for line in shown.splitlines() if line.startswith("event ")]
    assert events == ["event Normal Started", "event Normal Suspended", "event Normal Resumed"]


async def test_a_claim_that_stays_unbound_is_explained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "LOOK_S", 0.02)
    assert (await watched(Cluster())).count(SENTENCE) == 1


async def test_who_may_not_read_claims_watches_the_job_without_them() -> None:
    assert "claim" not in await watched(Cluster(may_read_claims=False))
