"""A worker pod serves until its Ray node ends, or until MPS fails on the GPUs that it shares.

The control program of MPS only acts like NVIDIA's.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from longshore.api.contract import ExitCode
from longshore.api.names import Component
from longshore.api.spec import RLJobSpec
from longshore_runtime.cluster import worker
from longshore_runtime.cluster.ray_node import NUM_LOG_LINES, RayNode, core_processes
from longshore_runtime.rewards.surroundings import GPU_SHARING_VARIABLE
from longshore_runtime.settings import Settings
from tests.addresses import network
from tests.contract.judge.test_mps import CONTROL, Container

LIMIT_S = 180.0
SERVER_LIST, SERVER_STATUS = 'cat "$pipe/servers" 2>/dev/null || true', 'cat "$pipe/status"'


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a worker pod whose job has a judge beside the engine; no coordinator listens."""
    judge = {"name": "taste", "kind": "Judge", "judge": {"modelPath": "judge"}}
    spec = RLJobSpec.model_validate(
        {
            "model": {"builtin": "Tiny", "maxContextTokens": 256},
            "data": {"builtin": "Counting"},
            "algorithm": {"steps": 1, "promptsPerStep": 4, "responsesPerPrompt": 2, "maxResponseTokens": 64},
            "storage": {"create": {"size": "1Gi"}},
            "reward": {"functions": [judge]},
        }
    )
    (tmp_path / "spec.json").write_text(spec.model_dump_json(by_alias=True))
    return Settings(
        job="count",
        namespace="team",
        job_uid="1234",
        attempt=1,
        component=Component.WORKER,
        index=0,
        pod_name="count-worker-0",
        pod_ip=f"{network()}.4.2",
        coordinator_ip=f"{network()}.4.1",
        config=tmp_path / "spec.json",
        storage=tmp_path,
        termination_log=tmp_path / "why",
    )


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["subprocess.Popen[bytes]"]:
    """What the pod's Ray node consists of here."""
    process = subprocess.Popen(["sleep", str(LIMIT_S)], start_new_session=True)
    _, lifeline = os.pipe()
    node = RayNode(tmp_path / "ray", process.pid, [psutil.Process(process.pid)], lifeline)
    monkeypatch.setattr(worker, "join", lambda settings, starter: node)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Container]:
    """Programs that answer as on a GPU that can be shared."""
    container = Container(tmp_path)
    container.install_smi("0, 9.0, Default, Disabled")
    monkeypatch.setenv("PATH", container.environment["PATH"])
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "")
    monkeypatch.setenv(GPU_SHARING_VARIABLE, "")
    handler = signal.getsignal(signal.SIGTERM)
    yield container
    signal.signal(signal.SIGTERM, handler)


def test_a_fatal_error_of_a_client_ends_the_pod_as_a_crash_that_is_reported(
    settings: Settings, container: Container, process: "subprocess.Popen[bytes]"
) -> None:
    control = CONTROL.replace(SERVER_LIST, "echo 4711").replace(SERVER_STATUS, "echo FAULT")
    container.install("nvidia-cuda-mps-control", control)
    assert worker.run_node(settings) not in list(ExitCode), "a crash: replaced, and counted"
    assert settings.termination_log.read_text() == (
        "MPS server 4711 is in state FAULT: a client caused a fatal GPU error; "
        "engine and judge start again in another pod"
    )
    assert not psutil.pid_exists(process.pid), "nobody is left who would compute on a broken GPU"


def test_a_pod_whose_mps_works_serves_until_its_node_ends(
    settings: Settings, container: Container, process: "subprocess.Popen[bytes]"
) -> None:
    """The third time that it is asked for its servers, after the start and once without success, the node has ended."""
    count = f'echo >> "{container.programs}/asked"; [ $(wc -l < "{container.programs}/asked") -lt 3 ] || kill'
    control = CONTROL.replace(SERVER_LIST, f"{count} {process.pid}; echo 4711").replace(SERVER_STATUS, "echo ACTIVE")
    container.install("nvidia-cuda-mps-control", control)
    assert worker.run_node(settings) == ExitCode.SUCCEEDED
    assert settings.termination_log.read_text() == "the coordinator is gone"
    assert os.environ[GPU_SHARING_VARIABLE] == "MPS", "what judges tell the coordinator"


def test_a_pod_whose_node_ends_under_a_coordinator_that_lives_shows_what_ray_logged(
    settings: Settings, container: Container, process: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = settings.storage / "ray" / "session_latest" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("".join(f"line {number}\n" for number in range(100)))
    (logs / "raylet.err").write_text("Check failed\n")
    (logs / "python-core-worker.log").write_text("of an actor\n")
    monkeypatch.setattr(worker, "head_is_ending", lambda settings: False)
    control = CONTROL.replace(SERVER_LIST, f"kill {process.pid}; echo 4711").replace(SERVER_STATUS, "echo ACTIVE")
    container.install("nvidia-cuda-mps-control", control)
    with capture_logs() as said:
        assert worker.run_node(settings) == worker.CRASHED
    assert settings.termination_log.read_text() == "the pod's Ray node ended although the coordinator is there"
    (lines,) = [entry["last_log_lines"] for entry in said if "last_log_lines" in entry]
    assert lines == ["Check failed", *(f"line {number}" for number in range(100 - NUM_LOG_LINES, 100))]


def test_a_pod_that_is_asked_to_stop_while_it_ends_anyway_leaves_nothing(
    settings: Settings, container: Container, process: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its job is done, and everybody ends at once."""
    (settings.storage / "ray").mkdir()
    stop = RayNode.stop

    def asked(node: RayNode) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        stop(node)

    monkeypatch.setattr(RayNode, "stop", asked)
    control = CONTROL.replace(SERVER_LIST, f"kill {process.pid}; echo 4711").replace(SERVER_STATUS, "echo ACTIVE")
    container.install("nvidia-cuda-mps-control", control)
    assert worker.run_node(settings) == ExitCode.SUCCEEDED
    assert not (settings.storage / "ray").exists()


RAYLET_WITH_A_CHILD = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(15, b"raylet", 0, 0, 0)  # PR_SET_NAME
if os.fork() == 0:
    print(os.getpid(), flush=True)
    sys.stdin.read()  # Here, a raylet's child would begin to run its own program.
else:
    os.wait()
    print("the child has ended", flush=True)
    sys.stdin.read()
"""


def test_a_child_of_the_raylet_that_still_has_its_name_is_not_the_node(tmp_path: Path) -> None:
    """The pod would end with it."""
    raylet = subprocess.Popen(
        [sys.executable, "-c", RAYLET_WITH_A_CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert raylet.stdin is not None and raylet.stdout is not None
    try:
        child = psutil.Process(int(raylet.stdout.readline()))
        assert child.name() == "raylet"
        (core,) = core_processes(raylet.pid)
        assert core.pid == raylet.pid
        _, lifeline = os.pipe()
        node = RayNode(tmp_path / "ray", raylet.pid, [core], lifeline)
        child.kill()
        assert raylet.stdout.readline() == "the child has ended\n"
        assert not node.wait(timeout_s=0.0)
        raylet.stdin.close()
        assert node.wait(LIMIT_S)
        node.stop()
    finally:
        raylet.kill()
        raylet.wait()
