"""The program of an environment pod, as a process of its own in the environment that the operator gives it."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from longshore.api import contract
from longshore_operator.children import children
from longshore_operator.pods import environment_pod
from tests.addresses import network
from tests.contract.environments.environment_pods import PATIENT_S, TOKEN
from tests.unit.operator.model import CONFIG, make_job


@contextmanager
def program(directory: Path, host: str, environment: dict[str, Any]) -> Iterator["subprocess.Popen[bytes]"]:
    """The program, with what the operator writes into its pod and the paths of this machine."""
    job = make_job(environments=[environment])
    manifest = environment_pod(job, CONFIG, 1, 0, f"{network()}.1.1")
    (container,) = manifest["spec"]["containers"]
    written: dict[str, Any] = {one["name"]: one.get("value") for one in container["env"]}
    (directory / "token").write_text(f"{TOKEN}\n")
    config_map = next(one.manifest for one in children(job, CONFIG) if one.manifest["kind"] == "ConfigMap")
    (directory / "environment.json").write_text(config_map["data"][f"environment-{environment['name']}.json"])
    paths = {
        contract.ENV_ENVIRONMENT: str(directory / "environment.json"),
        contract.ENV_ENVIRONMENT_TOKEN: str(directory / "token"),
        contract.ENV_TERMINATION_LOG: str(directory / "why"),
        contract.ENV_POD_IP: host,
        contract.ENV_POD_NAME: manifest["metadata"]["name"],
        "HOME": str(directory),
        "TMPDIR": str(directory),
        "PATH": os.environ["PATH"],
    }
    process = subprocess.Popen([sys.executable, *container["command"][1:]], env=written | paths)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def wait_ready(pod: "subprocess.Popen[bytes]", host: str, status: int = 200) -> str:
    """Wait until `/health` answers with this status; returns what it says."""
    async with asyncio.timeout(PATIENT_S), aiohttp.ClientSession() as session:
        while pod.poll() is None:
            try:
                async with session.get(f"http://{host}:{contract.ENVIRONMENT_PORT}/health") as answer:
                    if answer.status == status:
                        return await answer.text()
            except aiohttp.ClientError:
                continue
    raise AssertionError("the pod does not serve")
