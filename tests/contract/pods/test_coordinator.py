"""How a coordinator begins, and how one ends that cannot even begin."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from longshore.api import contract
from longshore.api.names import Component
from longshore_runtime import coordinator
from longshore_runtime.backends.tiny_model import build_tiny_model
from longshore_runtime.cluster.node_starter import NodeStarter
from longshore_runtime.cluster.ray_environment import RAY_ENVIRONMENT
from longshore_runtime.cluster.ray_node import head_starter
from longshore_runtime.coordinator import run_coordinator
from longshore_runtime.data.tokenizer import load_tokenizer
from longshore_runtime.errors import UserError
from longshore_runtime.settings import Settings
from longshore_runtime.stop import Stop
from tests.addresses import network

NOBODY = 65534
SPEC = {
    "model": {"builtin": "Tiny"},
    "data": {"builtin": "Counting"},
    "algorithm": {"steps": 1, "promptsPerStep": 4, "responsesPerPrompt": 4, "maxResponseTokens": 32},
    "reward": {"functions": [{"name": "task", "kind": "Task"}]},
    "storage": {"claimName": "shared"},
}


def prepare(directory: Path, monkeypatch: pytest.MonkeyPatch, config: str) -> None:
    """The environment that the operator gives to a coordinator."""
    (directory / "spec.json").write_text(config)
    (directory / "why").touch()
    (directory / "storage").mkdir()
    environment = {
        contract.ENV_JOB_NAME: "count",
        contract.ENV_JOB_NAMESPACE: "team",
        contract.ENV_JOB_UID: "1234",
        contract.ENV_ATTEMPT: "1",
        contract.ENV_COMPONENT: Component.COORDINATOR.value,
        contract.ENV_POD_NAME: "count-coordinator",
        contract.ENV_POD_IP: f"{network()}.4.3",
        contract.ENV_CONFIG: str(directory / "spec.json"),
        contract.ENV_STORAGE: str(directory / "storage"),
        contract.ENV_TERMINATION_LOG: str(directory / "why"),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory below which every user may look, unlike pytest's own."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def run_as_ordinary_user() -> int:
    """The exit code of a coordinator that root's rights do not help."""
    child = os.fork()
    if child == 0:
        if os.getuid() == 0:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        with head_starter() as starter:
            os._exit(run_coordinator(starter))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(
    ("config", "reported"),
    [
        ('{"model": {"builtin": "Huge"}}', "spec.model.builtin: input should be 'Tiny', not \"Huge\""),
        ("{", "spec: invalid JSON: EOF while parsing"),
    ],
)
def test_a_coordinator_whose_spec_cannot_be_read_leaves_the_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, reported: str
) -> None:
    prepare(tmp_path, monkeypatch, config)
    with head_starter() as starter:
        assert run_coordinator(starter) == contract.ExitCode.USER_ERROR
    assert (tmp_path / "why").read_text().startswith(reported)


@pytest.mark.parametrize("error", [ImportError("numpy cannot be imported"), UserError("rollout.engine: none starts")])
def test_whatever_fails_after_the_request_to_stop_is_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Its pods end, too, so engines cannot start; and imports make other errors of what a handler raises."""

    def train(settings: Settings, starter: NodeStarter, stop: Stop) -> None:
        stop.ask()
        raise error

    prepare(tmp_path, monkeypatch, "{")
    monkeypatch.setattr(coordinator, "_train", train)
    with head_starter() as starter:
        assert run_coordinator(starter) == contract.ExitCode.INTERRUPTED
    assert (tmp_path / "why").read_text() == "the pod was asked to stop"


HEAD: Final = """
import sys
from longshore_runtime.cluster.ray_node import head_starter, start_head
from longshore_runtime.settings import Settings

with head_starter() as starter:
    from longshore_runtime.cluster.ray_driver import ray_driver

    program = open(f"/proc/{starter.pid}/cmdline").read()
    settings = Settings.from_env()
    with start_head(settings, starter), ray_driver(settings.ray_address, settings.pod_ip):
        import ray

        print(program == open("/proc/self/cmdline").read(), len(ray.nodes()))
"""


def test_the_head_of_a_coordinator_is_started_by_a_fork_that_has_imported_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path, monkeypatch, "{")
    monkeypatch.setenv(contract.ENV_POD_IP, f"{network()}.4.4")
    ran = subprocess.run(
        [sys.executable, "-c", HEAD],
        env={**os.environ, **RAY_ENVIRONMENT},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    assert ran.stdout.splitlines()[-1] == "True 1"


COORDINATOR: Final = """
import sys
from pathlib import Path
from longshore.api.training import TrainerSettings
from longshore_runtime.__main__ import main
from longshore_runtime.backends.trainer_limits import trainer_mistake
from longshore_runtime.data.tokenizer import load_tokenizer

exit_code, model = main(["coordinator"]), Path(sys.argv[1])
tokens = load_tokenizer(model).encode("12")
mistake = trainer_mistake(TrainerSettings.model_validate({"backend": "Megatron"}), model, "tiny")
print(int(exit_code), tokens, mistake, "torch" in sys.modules)
import torch
"""


def test_a_coordinator_reads_a_model_without_importing_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_tiny_model(tmp_path / "model", seed=0)
    prepare(tmp_path, monkeypatch, "{")
    ran = subprocess.run(
        [sys.executable, "-c", COORDINATOR, tmp_path / "model"], capture_output=True, text=True, check=True, timeout=120
    )
    tokens = load_tokenizer(tmp_path / "model").encode("12")
    assert ran.stdout.splitlines()[-1] == f"{int(contract.ExitCode.USER_ERROR)} {tokens} None False"
    assert "PyTorch" not in ran.stdout + ran.stderr, "transformers advises users to install torch"


@pytest.mark.parametrize(
    ("output", "mode", "shown"),
    [
        ("", 0o555, "its root belongs to"),
        ("runs/deep/count", 0o755, "directory 'runs' belongs to"),
        ("runs/locked/count", 0o755, "directory 'runs/locked' belongs to"),
    ],
)
def test_storage_that_pods_may_not_write_is_a_mistake_of_the_job_reported_at_once(
    open_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, mode: int, shown: str
) -> None:
    prepare(open_path, monkeypatch, json.dumps(SPEC | {"storage": {"claimName": "shared", "output": output}}))
    (open_path / "why").chmod(0o666)
    storage = open_path / "storage"
    if output:
        (storage / "runs").mkdir(mode=0o555)
    if "locked" in output:
        (storage / "runs").chmod(0o755)
        (storage / "runs/locked").mkdir(mode=0o000)
    storage.chmod(mode)
    assert run_as_ordinary_user() == contract.ExitCode.USER_ERROR
    reported = (open_path / "why").read_text()
    assert reported.startswith("storage: the volume cannot be written by user ")
    assert shown in reported
    assert "template.spec.securityContext.fsGroup" in reported
