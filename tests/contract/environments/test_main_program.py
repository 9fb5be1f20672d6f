"""The program of an environment pod, as a process of its own in the environment that the operator gives it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from longshore.api import contract
from longshore.api.contract import ExitCode
from longshore_operator.children import children
from longshore_operator.pods import environment_pod
from longshore_runtime.rewards.transports import pod_protocol
from tests.addresses import network
from tests.contract.environments.environment_pods import PATIENT_S, TOKEN, USERS, connected, texts
from tests.unit.operator.model import CONFIG, make_job

SHELL: Final = {"name": "hostile", "kind": "Python", "importPath": f"{USERS}:Hostile"}


@pytest.fixture
def host() -> str:
    return f"{network()}.1.2"


@pytest.fixture
def pod(tmp_path: Path, host: str) -> Iterator[subprocess.Popen[bytes]]:
    """The program, with what the operator writes into its pod and the paths of this machine."""
    job = make_job(environments=[SHELL])
    manifest = environment_pod(job, CONFIG, 1, 0, f"{network()}.1.1")
    (container,) = manifest["spec"]["containers"]
    written: dict[str, Any] = {one["name"]: one.get("value") for one in container["env"]}
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    config_map = next(one.manifest for one in children(job, CONFIG) if one.manifest["kind"] == "ConfigMap")
    (tmp_path / "environment.json").write_text(config_map["data"]["environment-hostile.json"])
    paths = {
        contract.ENV_ENVIRONMENT: str(tmp_path / "environment.json"),
        contract.ENV_ENVIRONMENT_TOKEN: str(tmp_path / "token"),
        contract.ENV_TERMINATION_LOG: str(tmp_path / "why"),
        contract.ENV_POD_IP: host,
        contract.ENV_POD_NAME: manifest["metadata"]["name"],
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "PATH": os.environ["PATH"],
    }
    process = subprocess.Popen([sys.executable, *container["command"][1:]], env=written | paths)
    yield process
    process.kill()
    process.wait()


async def wait_ready(pod: "subprocess.Popen[bytes]", host: str) -> None:
    """Until `/health` answers."""
    async with asyncio.timeout(PATIENT_S), aiohttp.ClientSession() as session:
        while pod.poll() is None:
            try:
                async with session.get(f"http://{host}:{contract.ENVIRONMENT_PORT}/health") as answer:
                    assert answer.status == 200
                    return
            except aiohttp.ClientError:
                continue
    raise AssertionError("the pod does not serve")


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
