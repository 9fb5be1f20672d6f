"""Pods that run an OpenEnv server of their own, beside the program of the pod: it starts late, dies and comes back."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from longshore.api import contract
from longshore.api.environment import Environment
from longshore_runtime.environments import pod_server
from longshore_runtime.environments.events import EpisodeOver, TurnWanted
from longshore_runtime.environments.pod_protocol import Opened
from tests.addresses import network
from tests.contract.environments.driver import Driver, driving
from tests.contract.environments.environment_pods import PATIENT_S, TOKEN, connected
from tests.contract.environments.openenv_server import MESSAGE, Server, running
from tests.contract.environments.pod_program import program, wait_ready

PORT: Final = 8_000
"""Port of the servers; each pod has an address of its own."""
GAME: Final = {
    "name": "game",
    "kind": "OpenEnv",
    "server": {"image": "unused", "port": PORT},
    "callTimeoutSeconds": PATIENT_S,
    "pods": {"count": 2},
}


def server() -> Server:
    return Server(action=MESSAGE, max_sessions=1)


async def test_pod_takes_episodes_only_while_its_server_listens(tmp_path: Path) -> None:
    host = f"{network()}.2.1"
    with program(tmp_path, host, GAME) as pod:
        assert await wait_ready(pod, host, 503) == "the server does not listen at port 8000\n"
        with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
            async with connected(contract.ENVIRONMENT_PORT, host):
                pass
        for _ in range(2):
            with ExitStack() as running_server:
                running_server.enter_context(running(server(), PORT, host))
                await wait_ready(pod, host)
                async with connected(contract.ENVIRONMENT_PORT, host) as client:
                    assert isinstance(await client.open(1, "game", secret=42), Opened)
                    await asyncio.to_thread(running_server.close)
                    async with asyncio.timeout(PATIENT_S):
                        await client.ended
            await wait_ready(pod, host, 503)


async def test_pod_whose_server_stays_down_ends_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    host = f"{network()}.2.4"
    monkeypatch.setenv(contract.ENV_POD_IP, host)
    monkeypatch.setattr(pod_server, "SERVER_LIMIT_S", 1.0)
    pod = pod_server.EnvironmentServer([Environment.model_validate(GAME)], TOKEN)
    async with asyncio.timeout(PATIENT_S):
        code, reason = await pod._serve(host, contract.ENVIRONMENT_PORT)
    assert code == 1
    assert reason.startswith("environments[game].server: nothing has listened at port 8000 for 1 s; read the log")


@pytest.fixture
def hosts() -> list[str]:
    return [f"{network()}.2.2", f"{network()}.2.3"]


@pytest.fixture
def job(tmp_path: Path, hosts: list[str]) -> Iterator[Driver]:
    """A driver of a job with two pods, which have no servers yet."""
    with ExitStack() as pods:
        for host in hosts:
            (tmp_path / host).mkdir()
            pods.enter_context(program(tmp_path / host, host, GAME))
        environment = Environment.model_validate(GAME)
        yield pods.enter_context(driving(tmp_path, contract.ENVIRONMENT_PORT, environment, hosts=hosts))


def test_episodes_of_a_server_that_dies_begin_anew_in_another_pod(job: Driver, hosts: list[str]) -> None:
    first, second = server(), server()
    with running(second, PORT, hosts[1]):
        with running(first, PORT, hosts[0]):
            numbers = [job.start("a", secret=42) for _ in hosts]
            assert {_begun(job) for _ in numbers} == set(numbers)
            assert (first.num_sessions, second.num_sessions) == (1, 1), "a pod has as many as its server"
        for number in numbers:
            job.give(number, "42")
        over = job.hear()
        assert isinstance(over, EpisodeOver)
        (restarted,) = set(numbers) - {over.number}
        assert _begun(job) == restarted, "in the place of the other"
        assert isinstance(job.say(restarted, "42"), EpisodeOver)
        with running(server(), PORT, hosts[0]):
            numbers = [job.start("a", secret=42) for _ in hosts]
            assert {_begun(job) for _ in numbers} == set(numbers), "the pod is back with its server"


def _begun(job: Driver) -> int:
    """The number of the episode that begins, perhaps anew."""
    news = job.hear()
    assert isinstance(news, TurnWanted) and news.turn == 0, news
    return news.number
