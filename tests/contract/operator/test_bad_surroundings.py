"""An operator that is started where something is missing says what, and goes on by itself when it is there."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import structlog
from aiohttp import web

from longshore_operator import leader
from longshore_operator.config import AdmissionConfig
from longshore_operator.controller import utc_now
from longshore_operator.leader import Election
from longshore_operator.rljob_watch import until_served
from tests.contract.kube_client.script import Answer, Script, failure
from tests.contract.operator.test_client_faults import client_of

GPU = "nvidia.com/gpu"


def ok(**body: Any) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(body)

    return answer


async def test_an_operator_without_the_definition_says_how_to_install_it_and_waits_for_it() -> None:
    script = Script(
        failure(404, "NotFound"), failure(403, "Forbidden"), ok(resources=[]), ok(resources=[{"name": "rljobs"}])
    )  # fmt: skip
    with structlog.testing.capture_logs() as logs:
        async with client_of(script) as kube, asyncio.timeout(20):
            await until_served(kube, pause_s=0)
    assert {request.path for request in script.requests} == {"/apis/longshore.dev/v1alpha1"}
    assert len(logs) == 3
    assert all("kubectl apply --server-side -f crds/longshore.dev_rljobs.yaml" in one["event"] for one in logs)
    assert ["said 404" in logs[0]["error"], "said 403" in logs[1]["error"]] == [True, True]


async def test_a_candidate_that_may_not_read_the_lease_says_so_and_leads_when_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader, "RETRY_PERIOD_S", 0)
    script = Script(failure(403, "Forbidden"), failure(404, "NotFound"), ok(metadata={"name": "lease"}))
    with structlog.testing.capture_logs() as logs:
        async with client_of(script) as kube, asyncio.timeout(20):
            await Election(kube, "system", "lease", "me", utc_now).acquire()
    assert [one["event"] for one in logs] == ["leader election is disturbed", "leading"]
    assert "said 403" in logs[0]["error"]


async def test_a_leader_that_cannot_renew_its_lease_in_time_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "RETRY_PERIOD_S", 0)
    monkeypatch.setattr(leader, "RENEW_DEADLINE_S", 0)
    async with client_of(Script(*[failure(403, "Forbidden")] * 100)) as kube, asyncio.timeout(20):
        with pytest.raises(leader.LeadershipLost, match="Lease system/lease was not renewed"):
            await Election(kube, "system", "lease", "me", utc_now).hold()


async def test_a_leader_stops_as_soon_as_another_one_holds_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a suspension of its machine, which its own clock may not have counted."""
    monkeypatch.setattr(leader, "RETRY_PERIOD_S", 0)
    lease = {"metadata": {"name": "lease", "resourceVersion": "7"}, "spec": {"holderIdentity": "other"}}
    async with client_of(Script(ok(**lease))) as kube, asyncio.timeout(20):
        with pytest.raises(leader.LeadershipLost, match="Lease system/lease is held by other"):
            await Election(kube, "system", "lease", "me", utc_now).hold()


async def test_a_lease_counts_as_renewed_from_when_its_renewal_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may have seen it long before the answer comes."""
    now_s, answers = [0.0], iter([True, False, False, False])

    async def answered_late() -> bool:
        now_s[0] += 5
        return next(answers)

    monkeypatch.setattr(leader, "RETRY_PERIOD_S", 0)
    monkeypatch.setattr(leader, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    election = Election(Mock(), "system", "lease", "me", utc_now)
    monkeypatch.setattr(election, "_try", answered_late)
    with pytest.raises(leader.LeadershipLost, match="was not renewed in 10 s"):
        await election.hold()
    assert now_s == [15.0], "10 s after the renewal was sent, not after its answer"


def test_a_quota_that_the_capacity_never_grants_is_named_with_both_figures() -> None:
    limits = {"capacity": {GPU: 8}, "quotas": {"team-a": {GPU: 16}, "team-b": {GPU: 8, "amd.com/gpu": 4}}}
    [reported] = AdmissionConfig.model_validate(limits).contradictions()
    assert reported.startswith("admission.quotas.team-a: 16 nvidia.com/gpu are more than the 8 of admission.capacity")
    assert reported.endswith("lower the quota or raise the capacity")
    assert AdmissionConfig.model_validate({"quotas": {"team-a": {GPU: 16}}}).contradictions() == []
