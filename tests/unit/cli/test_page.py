"""The page of a job on this machine."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from longshore.page.fleet import FleetMoment
from longshore_cli.errors import CliError
from longshore_cli.page.cluster import cluster_view
from longshore_cli.page.fleet import extended, fleet_jobs
from longshore_cli.page.forward import Forward, forward_command
from longshore_cli.page.report import request_line
from longshore_cli.page.server import Fleet, JobSource, LocalPage
from longshore_client.target import Target
from longshore_runtime.page.report import ReportRequest
from tests.page_job import cluster, spec
from tests.unit.cli.samples import at_step, condition, rljob


def event(name: str, second: int, **more: Any) -> dict[str, Any]:
    return {"metadata": {"uid": name}, "lastTimestamp": f"2026-01-01T00:00:{second:02}Z", "reason": name, **more}


class Tunnel(Forward):
    """Leads to a port of this machine, or nowhere."""

    def __init__(self, number: int | None) -> None:
        super().__init__(["true"], None)
        self.number = number
        self.num_closed = 0

    async def port(self) -> int:
        if self.number is None:
            raise CliError('kubectl cannot forward the page: pods "demo-coordinator" not found')
        return self.number

    async def close(self) -> None:
        self.num_closed += 1


@pytest.fixture
async def coordinator() -> AsyncIterator[TestServer]:
    """Answers with what it was asked."""

    async def echo(request: web.Request) -> web.Response:
        request_seen = {"path": request.path, "tag": request.headers.get("If-None-Match")}
        return web.json_response(request_seen, headers={"ETag": '"new"', "Set-Cookie": "a=b"})

    application = web.Application()
    application.router.add_get("/{path:.*}", echo)
    async with TestServer(application) as server:
        yield server


def serving(tunnel: Tunnel) -> TestClient[Any, Any]:
    return TestClient(TestServer(LocalPage(source(tunnel)).application()))


def source(tunnel: Tunnel, *, is_finished: bool = False, reports: Sequence[bytes] = ()) -> JobSource:
    """A job with one report for each time that it is made."""
    made = iter(reports)
    return JobSource(lambda: cluster(is_finished=is_finished), tunnel, lambda: next(made))


async def test_what_the_coordinator_knows_comes_through_the_tunnel(coordinator: TestServer) -> None:
    async with serving(Tunnel(coordinator.port)) as client:
        answer = await client.get("/api/samples/12/0-7", headers={"If-None-Match": '"old"'})
        assert await answer.json() == {"path": "/api/samples/12/0-7", "tag": '"old"'}
        assert answer.headers["ETag"] == '"new"'
        assert answer.headers["Cache-Control"] == "no-store"
        assert "Set-Cookie" not in answer.headers


async def test_nothing_else_comes_through_it(coordinator: TestServer) -> None:
    async with serving(Tunnel(coordinator.port)) as client:
        for path in ("/metrics", "/api/other", "/api/rounds/x", "/api/samples/1/..%2fx"):
            assert (await client.get(path)).status == 404
        assert (await client.post("/api/view")).status == 405


async def test_conditions_and_events_come_from_the_api_server_without_the_coordinator() -> None:
    async with serving(Tunnel(None)) as client:
        assert (await client.get("/")).status == 200
        assert (await (await client.get("/api/cluster")).json())["phase"] == "Running"
        answer = await client.get("/api/view")
        assert answer.status == 502
        assert "demo-coordinator" in await answer.text()


async def test_the_page_of_a_finished_job_is_its_report_which_is_made_once() -> None:
    ended = source(Tunnel(None), is_finished=True, reports=[b"<!doctype html>report"])
    async with TestClient(TestServer(LocalPage(ended).application())) as client:
        for _ in range(2):
            answer = await client.get("/")
            assert (await answer.text(), answer.content_type) == ("<!doctype html>report", "text/html")


async def test_the_page_of_all_jobs_leads_to_the_page_of_each(coordinator: TestServer) -> None:
    found = {
        ("team", "runs"): source(Tunnel(coordinator.port)),
        ("team", "ended"): source(Tunnel(None), is_finished=True, reports=[b"report"]),
    }
    fleet = Fleet(cluster, lambda namespace, name: found[namespace, name])
    async with TestClient(TestServer(LocalPage(fleet).application())) as client:
        assert "Longshore" in await (await client.get("/jobs/team/runs/")).text()
        answer = await (await client.get("/jobs/team/runs/api/rounds/3")).json()
        assert answer["path"] == "/api/rounds/3"
        assert (await (await client.get("/jobs/team/runs/api/cluster")).json())["phase"] == "Running"
        assert await (await client.get("/jobs/team/ended/")).text() == "report"
    tunnels = [one.forward for one in found.values()]
    assert [tunnel.num_closed for tunnel in tunnels if isinstance(tunnel, Tunnel)] == [1, 1]


async def test_a_tunnel_to_a_coordinator_that_is_gone_is_given_up() -> None:
    async with TestServer(web.Application()) as ended:
        port = ended.port
    tunnel = Tunnel(port)
    async with serving(tunnel) as client:
        answer = await client.get("/api/view")
        assert (answer.status, tunnel.num_closed) == (502, 1)
        assert "does not answer" in await answer.text()


async def test_a_site_whose_name_leads_here_reads_nothing(coordinator: TestServer) -> None:
    async with serving(Tunnel(coordinator.port)) as client:
        for host in ("evil.example", "evil.example:80", "localhost.evil.example:80"):
            assert (await client.get("/api/cluster", headers={"Host": host})).status == 403
        assert (await client.get("/api/cluster", headers={"Host": "localhost:80"})).status == 200


def test_conditions_and_events_are_those_of_the_job() -> None:
    job = rljob(at_step(3), conditions=(condition("Ready", "False", "Unschedulable", "no room"),), attempt=2)
    shown = cluster_view(job, [event("Later", 9, count=3), event("Sooner", 1, series={"count": 7})])
    assert (shown.name, shown.phase, shown.attempt, shown.is_finished) == ("demo", "Running", 2, False)
    assert [(one.type, one.reason, one.message) for one in shown.conditions] == [("Ready", "Unschedulable", "no room")]
    assert shown.events is not None
    assert [(one.reason, one.count) for one in shown.events] == [("Sooner", 7), ("Later", 3)]


def test_who_may_not_list_events_sees_the_rest() -> None:
    assert cluster_view(rljob(at_step(3)), None).events is None


def test_the_helper_pod_reads_what_it_is_asked_for() -> None:
    job = rljob(at_step(3), phase="Succeeded")
    job["spec"] = json.loads(spec().model_dump_json())
    line = request_line(job, [event("Done", 1)])
    assert line.count(b"\n") == 1
    request = ReportRequest.model_validate_json(line)
    assert (request.name, request.spec, request.cluster.phase) == ("demo", spec(), "Succeeded")
    assert request.runtime is not None and request.runtime.step == 3


def test_kubectl_forwards_to_this_machine_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    command = forward_command(Target(context="prod"), "team", "demo-coordinator", 8088)
    options = ["--context", "prod", "-n", "team", "port-forward", "--address", "127.0.0.1"]
    assert command == [str(kubectl), *options, "pod/demo-coordinator", ":8088"]


def test_without_kubectl_the_fix_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CliError) as found:
        forward_command(Target(), "team", "demo-coordinator", 8088)
    assert "longshore report" in found.value.fix


class TestFleet:
    @staticmethod
    def job(name: str, created: str, **fields: Any) -> dict[str, Any]:
        found = rljob(**fields)
        found["metadata"] |= {"name": name, "creationTimestamp": f"2026-01-01T00:00:{created}Z"}
        found["spec"] = json.loads(spec().model_dump_json())
        return found

    def test_unfinished_jobs_come_first_and_among_them_those_that_need_attention(self) -> None:
        held = (condition("Admitted", "False", "WaitsForGPUs", "4 GPUs are missing"),)
        found = fleet_jobs(
            [
                self.job("done", "09", phase="Succeeded"),
                self.job("new", "08", runtime=at_step(1)),
                self.job("old", "01", runtime=at_step(3)),
                self.job("held", "05", phase="Queued", conditions=held),
            ]
        )
        assert [job.name for job in found] == ["held", "new", "old", "done"]
        assert found[0].waits_for == "WaitsForGPUs: 4 GPUs are missing"

    def test_a_job_that_starts_as_usual_needs_no_attention(self) -> None:
        pods = (condition("Ready", "False", "PodsNotReady", "0 of 3 pods are ready"),)
        found = fleet_jobs(
            [self.job("starts", "01", phase="Starting", conditions=pods), self.job("runs", "02", runtime=at_step(1))]
        )
        assert [(job.name, job.waits_for) for job in found] == [("runs", ""), ("starts", "")]

    def test_a_job_that_failed_shows_why(self) -> None:
        conditions = (condition("Failed", "True", "UserError", "data.path: no such file"),)
        failed, done = fleet_jobs(
            [self.job("failed", "02", phase="Failed", conditions=conditions), self.job("done", "01", phase="Succeeded")]
        )
        assert (failed.failure, done.failure) == ("UserError: data.path: no such file", "")

    def test_gpus_are_counted_by_role_and_those_that_are_waited_for(self) -> None:
        jobs = fleet_jobs(
            [
                self.job("runs", "01", runtime=at_step(1), gpus={"rollout": 3, "trainer": 1}),
                self.job("waits", "02", phase="Queued"),
                self.job("done", "03", phase="Succeeded"),
            ]
        )
        (moment,) = extended((), 5.0, jobs)
        assert moment.gpus == {"rollout": 3, "trainer": 1, "judge": 0, "waiting": 4}

    def test_a_job_that_cannot_be_read_is_shown_all_the_same(self) -> None:
        wrong = self.job("wrong", "01", phase="Failed")
        wrong["spec"] = {"rollout": {"strategy": "None"}}
        (row,) = fleet_jobs([wrong])
        assert (row.name, row.demand) == ("wrong", 0)

    def test_a_history_of_any_length_stays_bounded_and_keeps_its_ends(self) -> None:
        history: tuple[FleetMoment, ...] = ()
        for second in range(5_000):
            history = extended(history, float(second), ())
        assert len(history) <= 2_000
        assert (history[0].time_s, history[-1].time_s) == (0.0, 4_999.0)
        assert [one.time_s for one in history] == sorted(one.time_s for one in history)
