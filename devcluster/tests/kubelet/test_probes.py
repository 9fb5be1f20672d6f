"""What a series of probe results means, and how one is tried."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from devcluster.tests.builders import Json

from longshore_devcluster.kubelet.probes import Outcome, Timing, Verdict, attempt


def verdicts(probe: Json, results: str) -> list[bool | None]:
    verdict = Verdict(Timing.of(probe))
    return [verdict.observe(result == "+") for result in results]


def test_one_success_counts_and_three_failures_in_a_row_by_default() -> None:
    assert verdicts({}, "+--+---") == [True, None, None, True, None, None, False]


def test_thresholds_are_respected() -> None:
    probe = {"successThreshold": 2, "failureThreshold": 1}

    assert verdicts(probe, "-+-++") == [False, None, False, None, True]


def test_defaults_are_those_of_kubernetes() -> None:
    assert Timing.of({}) == Timing(
        initial_delay_s=0, period_s=10, timeout_s=1, success_threshold=1, failure_threshold=3
    )


async def no_exec(argv: list[str], timeout_s: float) -> tuple[int, str]:
    raise AssertionError("this probe runs no command")


@pytest.fixture
async def server() -> TestServer:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/slow":
            await asyncio.Event().wait()
        return web.Response(status=int(request.path.lstrip("/") or 200))

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    server = TestServer(application, host="127.0.0.1")
    await server.start_server()
    return server


@pytest.mark.parametrize(("path", "success"), [("/", True), ("/302", True), ("404", False), ("/503", False)])
async def test_http_probe_succeeds_below_400(server: TestServer, path: str, success: bool) -> None:
    container = {"ports": [{"name": "web", "containerPort": server.port}]}
    outcome = await attempt({"httpGet": {"path": path, "port": "web"}}, container, "127.0.0.1", no_exec)
    await server.close()

    assert outcome.success is success
    assert success or path.lstrip("/") in outcome.message


async def test_unknown_port_name_fails_the_probe_with_its_name(server: TestServer) -> None:
    outcome = await attempt({"httpGet": {"port": "admin"}}, {}, "127.0.0.1", no_exec)
    await server.close()

    assert outcome == Outcome(False, "the container declares no port named 'admin'")


async def test_tcp_probe_wants_a_listener(server: TestServer) -> None:
    probe = {"tcpSocket": {"port": server.port}}
    assert (await attempt(probe, {}, "127.0.0.1", no_exec)).success

    await server.close()

    assert not (await attempt(probe, {}, "127.0.0.1", no_exec)).success


async def test_exec_probe_succeeds_with_exit_code_zero() -> None:
    async def run(argv: list[str], timeout_s: float) -> tuple[int, str]:
        return (0, "") if argv == ["true"] else (1, "why\n")

    assert await attempt({"exec": {"command": ["true"]}}, {}, "", run) == Outcome(True)
    assert await attempt({"exec": {"command": ["false"]}}, {}, "", run) == Outcome(False, "why")
