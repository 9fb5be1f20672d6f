"""In which order a plan goes over the wire, to API servers that know a Role late or refuse something."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from longshore_kube.access import Access
from longshore_operator.apply import ApplyFailed, Executor
from longshore_operator.children import children
from longshore_operator.config import OperatorConfig
from longshore_operator.kube import KubeClient
from longshore_operator.plan import Action, CreateOnce, CreatePod, DeleteJob, DeletePod, Event, LabelPod, PatchObject
from tests.unit.operator.model import make_job

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class SlowRoles:
    """An API server that has every object at once, but knows a Role only after a binding was refused for its lack."""

    def __init__(self, num_refusals: int) -> None:
        self._num_refusals = num_refusals
        self.applied: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.num_events_before_deletion = 0

    async def handle(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            return _status(404)
        body = await request.json()
        if request.method == "DELETE":
            self.num_events_before_deletion = len(self.events)
            return web.json_response(body)
        if body["kind"] == "RoleBinding":
            assert "Role" in self.applied, "a binding came before its role"
            if self._num_refusals:
                self._num_refusals -= 1
                return _status(404)
        (self.events if body["kind"] == "Event" else self.applied).append(
            body if body["kind"] == "Event" else body["kind"]
        )
        return web.json_response(body)

    @asynccontextmanager
    async def executor(self) -> AsyncIterator[Executor]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        async with TestServer(app) as server, KubeClient(Access(str(server.make_url("")).rstrip("/"))) as kube:
            yield Executor(kube, lambda *_: None, lambda _: None, lambda _: None, lambda *_: None)


def _status(code: int) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "reason": "", "message": "not found"}, status=code)


CHILDREN: tuple[Action, ...] = children(make_job(), OperatorConfig("image"))


async def test_a_role_is_there_before_it_is_bound() -> None:
    server = SlowRoles(num_refusals=2)
    async with server.executor() as executor:
        await executor.run(("team", "demo"), "u", tuple(reversed(CHILDREN)), NOW)
    assert server.applied[-1] == "RoleBinding"
    assert len(server.applied) == len(CHILDREN)


async def test_a_role_that_never_comes_is_a_failure() -> None:
    server = SlowRoles(num_refusals=1000)
    async with server.executor() as executor:
        with pytest.raises(ApplyFailed, match="not found"):
            await executor.run(("team", "demo"), "u", CHILDREN, NOW)


async def test_events_of_one_pass_keep_their_order() -> None:
    server = SlowRoles(num_refusals=0)
    reasons = ["Started", "PodLost", "Restarting", "Unschedulable"]
    async with server.executor() as executor:
        actions = [Event("Normal", reason, "now", reason) for reason in reasons]
        await executor.run(("team", "demo"), "u", actions, NOW)
    assert [event["reason"] for event in sorted(server.events, key=lambda event: event["eventTime"])] == reasons
    assert {event["lastTimestamp"] for event in server.events} == {"2026-01-01T00:00:00Z"}


async def test_a_job_is_deleted_after_its_events_were_posted() -> None:
    server = SlowRoles(num_refusals=0)
    async with server.executor() as executor:
        actions = [DeleteJob("u"), Event("Normal", "Finished", "now", "finished-1")]
        await executor.run(("team", "demo"), "u", actions, NOW)
    assert server.num_events_before_deletion == 1


class Refusing:
    """An API server that refuses all writes to one object."""

    def __init__(self, refused: str) -> None:
        self._refused = refused
        self.created: list[str] = []
        """Names of pods."""

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else {}
        name = request.path.rpartition("/")[2] if request.method != "POST" else body["metadata"]["name"]
        if name == self._refused:
            refusal = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": f"{name} is refused"}
            return web.json_response(refusal, status=403)
        if request.method == "POST" and body["kind"] == "Pod":
            self.created.append(name)
        return web.json_response(body)

    async def run(self, *actions: Action) -> list[str]:
        """Carry out what the server refuses in part; return the pods that were created."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        async with TestServer(app) as server, KubeClient(Access(str(server.make_url("")).rstrip("/"))) as kube:
            executor = Executor(kube, lambda *_: None, lambda _: None, lambda _: None, lambda *_: None)
            with pytest.raises(ApplyFailed, match=f"{self._refused} is refused"):
                await executor.run(("team", "demo"), "u", actions, NOW)
        return self.created


def _object(kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "team"}}


PODS: tuple[Action, ...] = tuple(CreatePod(_object("Pod", name)) for name in ("a", "b"))


@pytest.mark.parametrize(
    "action",
    [
        LabelPod("old", "u", {"longshore.dev/role": "trainer"}),
        DeletePod("old", "u"),
        PatchObject("old", "Workload@v1beta2", {}),
        CreateOnce(_object("Secret", "old"), is_again=True),
    ],
    ids=lambda action: type(action).__name__,
)
async def test_pods_are_created_although_something_is_refused_that_they_do_not_need(action: Action) -> None:
    """A Secret that an earlier attempt had is there, but an API server looks at quotas before it looks at names."""
    assert await Refusing("old").run(action, *PODS) == ["a", "b"]


async def test_a_pod_that_is_refused_keeps_no_other_from_being_created() -> None:
    assert await Refusing("a").run(*PODS) == ["b"]


@pytest.mark.parametrize(
    "action",
    [CreateOnce(_object("Secret", "token")), next(child for child in CHILDREN if "Policy" in child.key[0])],
    ids=lambda action: action.key[0],
)
async def test_no_pod_is_created_without_what_it_may_need(action: CreateOnce) -> None:
    """Without its NetworkPolicy, for example, a pod could be reached by others."""
    assert await Refusing(action.key[1]).run(action, *PODS) == []
