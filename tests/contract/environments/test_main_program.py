"""The program of an environment pod, as a process of its own in the environment that the operator gives it."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from longshore.api import contract
from longshore.api.contract import ExitCode
from longshore_runtime.rewards.transports import pod_protocol
from tests.addresses import network
from tests.contract.environments.environment_pods import PATIENT_S, TOKEN, USERS, connected, texts
from tests.contract.environments.pod_program import program, wait_ready

SHELL: Final = {"name": "hostile", "kind": "Python", "importPath": f"{USERS}:Hostile"}


@pytest.fixture
def host() -> str:
    return f"{network()}.1.2"


@pytest.fixture
def pod(tmp_path: Path, host: str) -> Iterator[subprocess.Popen[bytes]]:
    with program(tmp_path, host, SHELL) as process:
        yield process


async def test_a_pod_plays_its_environment_without_the_rest_of_the_job_and_ends_when_asked(
    pod: "subprocess.Popen[bytes]", host: str, tmp_path: Path
) -> None:
    await wait_ready(pod, host)
    async with connected(contract.ENVIRONMENT_PORT, host) as client:
        await client.open(1, "hostile")
        assert texts(await client.call(1, ("fine", {}))) == ["fine"]
    pod.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(pod.wait, PATIENT_S) == ExitCode.INTERRUPTED
    assert (tmp_path / "why").read_text(), "Kubernetes finds the reason of the end"


async def test_the_tokens_of_others_open_nothing(pod: "subprocess.Popen[bytes]", host: str) -> None:
    await wait_ready(pod, host)
    async with aiohttp.ClientSession() as session:
        for path in (pod_protocol.LOG_PATH, "/v1/environments"):
            for header in ({}, {"Authorization": TOKEN}, {"Authorization": "Bearer of another environment"}):
                url = f"http://{host}:{contract.ENVIRONMENT_PORT}{path}"
                async with session.get(url, headers=header) as answer:
                    assert answer.status == 401, (path, header)
