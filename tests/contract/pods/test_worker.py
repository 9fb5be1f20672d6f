"""A pod that shares its GPUs by MPS ends when MPS fails; the control program only acts like NVIDIA's."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from longshore.api.contract import ExitCode
from longshore.api.names import Component
from longshore.api.spec import RLJobSpec
from longshore_runtime.cluster import worker
from longshore_runtime.cluster.ray_node import RayNode
from longshore_runtime.rewards.surroundings import GPU_SHARING_VARIABLE
from longshore_runtime.settings import Settings
from tests.contract.judge.test_mps import CONTROL, Container

LIMIT_S = 180.0
SERVER_LIST, SERVER_STATUS = 'cat "$pipe/servers" 2>/dev/null || true', 'cat "$pipe/status"'


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of a worker pod whose job has a judge beside the engine; no coordinator listens."""
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
        pod_ip="127.11.0.2",
        coordinator_ip="127.11.0.1",
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
