"""The API server goes away and comes back, and clocks differ: jobs go on, and nothing starts twice."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from benchmarks.measured_process import free_port
from benchmarks.pretend_kubelet import PretendKubelet

from longshore_kube.access import Access
from longshore_kube.errors import KubeError
from longshore_operator import leader
from longshore_operator.kube import KubeClient
from longshore_operator.leader import Election, LeadershipLost
from longshore_operator.main import parse, run
from tests.contract.operator.no_nodes import JOB, api_server, create_job, until
from tests.contract.operator.test_controller import CountingKube, Operator
from tests.unit.operator.model import SPEC

THREE_PODS = SPEC | {"reward": {"pods": 0}}
SKEWS = [timedelta(minutes=-10), timedelta(minutes=10)]


async def has_phase(kube: KubeClient, phase: str) -> bool:
    job = await kube.get("RLJob", *JOB)
    return job is not None and (job.get("status") or {}).get("phase") == phase


class Supervised:
    """An operator that is started again whenever it ends, as a kubelet does."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.ends: list[BaseException] = []

    async def run(self) -> None:
        """Never return."""
        arguments = ["run", "--all-namespaces", "--runtime-image=unused", "--lease-namespace=default"]
        while True:
            try:
                options = parse([*arguments, f"--health-port={free_port()}"])
                await run(options, self._access, asyncio.Event())
            except (KubeError, LeadershipLost, OSError) as error:
                self.ends.append(error)
                await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def background(*work: Any) -> AsyncIterator[None]:
    """Tasks that run meanwhile, and are cancelled in the end."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
        assert not any(task.done() for task in tasks), tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_jobs_go_on_and_no_pod_starts_twice_when_the_api_server_was_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long it is away does not matter: once the leader has ended, nothing happens until it is back."""
    monkeypatch.setattr(leader, "RETRY_PERIOD_S", 0.1)
    monkeypatch.setattr(leader, "RENEW_DEADLINE_S", 1.0)
    monkeypatch.setattr(leader, "LEASE_DURATION_S", 2)
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        async with api_server(tmp_path, port) as access:
            kube = await stack.enter_async_context(KubeClient(access))
            kubelet, operator = PretendKubelet(kube.client), Supervised(access)
            await create_job(kube, THREE_PODS)
            await stack.enter_async_context(background(kubelet.run(), operator.run()))
            await until("the job runs", lambda: has_phase(kube, "Running"))
            pods = dict(kubelet.pods)
            assert len(pods) == 3
        await until("the leader ends", lambda: operator.ends)
        async with api_server(tmp_path, port):
            lost = next(name for _, name in pods.values() if name == "demo-worker-1")
            await kube.client.request("DELETE", f"/api/v1/namespaces/default/pods/{lost}", body={})
            await until("the worker is replaced", lambda: len(kubelet.pods) == 4)
            await until("the job runs again", lambda: has_phase(kube, "Running"))
            await kubelet.succeed(*JOB)
            await until("the job succeeds", lambda: has_phase(kube, "Succeeded"))
            job = await kube.get("RLJob", *JOB)
            assert job is not None
            assert (job["status"]["attempt"], job["status"].get("failures", 0)) == (1, 0)
            assert len(kubelet.pods) == 4, "only the worker that was lost has a successor"
    assert isinstance(operator.ends[0], LeadershipLost)


@pytest.mark.parametrize("ahead", SKEWS)
async def test_a_job_runs_and_ends_though_the_clock_of_the_api_server_differs(tmp_path: Path, ahead: timedelta) -> None:
    async with api_server(tmp_path, ahead=ahead) as access, KubeClient(access) as kube:
        kubelet, operator = PretendKubelet(kube.client), Supervised(access)
        await create_job(kube, THREE_PODS)
        async with background(kubelet.run(), operator.run()):
            await until("the job runs", lambda: has_phase(kube, "Running"))
            await kubelet.succeed(*JOB)
            await until("the job succeeds", lambda: has_phase(kube, "Succeeded"))
    job_pods = len(kubelet.pods)
    assert (job_pods, operator.ends) == (3, [])


@pytest.mark.parametrize("ahead", SKEWS)
async def test_a_back_off_is_measured_by_the_clock_of_the_operator(tmp_path: Path, ahead: timedelta) -> None:
    async with api_server(tmp_path, ahead=ahead) as access, CountingKube(access) as kube:
        await create_job(kube, THREE_PODS)
        operator = Operator(kube)
        await operator.until_idle()
        crashed = {"name": "longshore", "state": {"terminated": {"exitCode": 1}}}
        await operator.pod_status({"phase": "Failed", "containerStatuses": [crashed]}, node="node-0")
        [pod] = operator.controller.informer.pods(JOB)
        assert ("DELETE", "pods") in await operator.look()
        operator.controller.informer.take("DELETED", pod)
        operator.now += timedelta(seconds=9)
        assert ("POST", "pods") not in await operator.look()
        operator.now += timedelta(seconds=2)
        assert ("POST", "pods") in await operator.look()
        await operator.controller.close()


@pytest.mark.parametrize("ahead", SKEWS)
async def test_a_candidate_whose_clock_differs_leads_only_when_the_lease_was_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: timedelta
) -> None:
    monkeypatch.setattr(leader, "LEASE_DURATION_S", 1)
    async with api_server(tmp_path) as access, KubeClient(access) as kube:
        first = Election(kube, "default", "lease", "first", lambda: datetime.now(UTC))
        second = Election(kube, "default", "lease", "second", lambda: datetime.now(UTC) + ahead)
        assert await first._try()
        for _ in range(3):
            assert not await second._try()
            assert await first._try()
        await until("the Lease was left alone for its duration", second._try)
        assert not await first._try()
