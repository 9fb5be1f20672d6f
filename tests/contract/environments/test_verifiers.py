"""Environments of `verifiers`, of both of its interfaces, ask the model as agents do.

The package wants other versions of packages than the runtime: `make agent-programs` installs it in environments of its
own.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from longshore.api.environment import Environment
from longshore_runtime.environments import verifiers_program
from longshore_runtime.environments.events import EpisodeGivenUp, EpisodeOver, TurnWanted
from tests.contract.environments.environment_pods import PATIENT_S
from tests.contract.environments.test_agents import asking, ended, prompt_of

VENV: Final = Path(os.environ.get("LONGSHORE_TEST_AGENT_PROGRAMS", ".venv")).resolve()
PACKAGES: Final = Path(__file__).parent / "verifiers_packages"
INTERFACES: Final = {
    "higher-v1": "verifiers",
    "higher-v0": "verifiers-before-tasksets",
    "higher-v0-newest": "verifiers-last-before-tasksets",
}
"""Ids of environments, and the environment of Python that has the version of `verifiers` for each."""


def python_of(name: str) -> Path:
    python = VENV / INTERFACES[name] / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no {python}: install it with make agent-programs")
    return python


@pytest.fixture(params=INTERFACES)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PYTHONPATH", str(PACKAGES))
    monkeypatch.setenv("PATH", f"{python_of(request.param).parent}:{os.environ['PATH']}")  # verifiers looks for uv.
    return str(request.param)


def environment(name: str, arguments: dict[str, Any], **fields: Any) -> Environment:
    of_package = {"id": name, "arguments": arguments, "python": str(python_of(name))}
    limits = {"callTimeoutSeconds": PATIENT_S, "retries": 0, "maxTurns": 9}
    return Environment.model_validate({"name": name, "kind": "Verifiers", "verifiers": of_package, **limits, **fields})


def arguments_of(name: str) -> dict[str, Any]:
    # The default harness of verifiers 0.4.0 repeats its system prompt in the second turn, which makes another branch.
    v1 = {"taskset": {"most": 5}, "player": {"harness": {"id": "null"}}}
    return v1 if name.endswith("v1") else {"most": 5}


def rows(name: str) -> list[dict[str, Any]]:
    """Rows as `longshore tasks` prints them."""
    of_job = environment(name, arguments_of(name)).model_dump(mode="json", by_alias=True, exclude_unset=True)
    spec = {
        "model": {"path": "model", "maxContextTokens": 2048},
        "data": {"path": "data/train.jsonl", "chat": {}},
        "environments": [of_job],
        "reward": {"functions": [{"name": "won", "kind": "Environment"}]},
        "algorithm": {"steps": 1, "promptsPerStep": 1, "responsesPerPrompt": 2, "maxResponseTokens": 64},
        "storage": {"claimName": "shared"},
    }
    manifest = {"apiVersion": "longshore.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "job"}, "spec": spec}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(manifest, file)
        command = [sys.executable, "-m", "longshore_cli", "tasks", file.name, "--limit", "4"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_tasks_become_rows_and_a_row_is_played_to_its_reward(name: str, tmp_path: Path) -> None:
    found = rows(name)
    assert len(found) == 4
    assert found[3]["answer"] == ("" if name.endswith("v1") else "3"), "every row of data has an answer"
    with asking(tmp_path, environment(name, arguments_of(name))) as driver:
        for _ in range(2):  # The second episode is another fork of the same process.
            number = driver.start(task=found[3]["task"])
            assert prompt_of(driver.hear()).endswith("0 to 5?<|im_end|>\n<|im_start|>assistant\n")
            assert "lower" in prompt_of(driver.say(number, "5"))
            assert prompt_of(driver.say(number, "1")).count("er<|im_end|>") == 2
            episode = ended(driver.say(number, "3"))
            assert (episode.reward, episode.num_turns, len(episode.branches)) == (1.0, 3, 1)
            assert episode.state is not None
            state = json.loads(episode.state)
            assert "won" in state["rewards" if name.endswith("v1") else "metrics"]


def test_a_taskset_may_have_the_name_of_a_module_of_longshore(tmp_path: Path) -> None:
    (tmp_path / "gateway.py").write_text((PACKAGES / "higher_v1.py").read_text())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [python_of("higher-v1"), verifiers_program.__file__, "gateway", "{}", "--rows", "1"]
        written = subprocess.run(
            [*command, "--control", str(theirs.fileno())],
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            pass_fds=[theirs.fileno()],
        )
    assert json.loads(written.stdout)["prompt"] == "0 to 9?"


def test_what_an_environment_raises_fails_the_episode_with_its_cause(name: str, tmp_path: Path) -> None:
    (row, *_) = rows(name)
    with asking(tmp_path, environment(name, arguments_of(name))) as driver:
        number = driver.start(task=row["task"])
        assert isinstance(driver.hear(), TurnWanted)
        given_up = driver.say(number, "none")
        assert isinstance(given_up, EpisodeGivenUp), given_up
        assert "invalid literal for int()" in given_up.reason or "EnvError" in given_up.reason


def test_an_environment_that_cannot_be_loaded_is_a_mistake_of_the_user(name: str, tmp_path: Path) -> None:
    wrong = environment(name, {"taskset": {"lest": 5}} if name.endswith("v1") else {"most": "five"})
    with asking(tmp_path, wrong) as driver:
        driver.start(task={})
        given_up = driver.hear()
        assert isinstance(given_up, EpisodeGivenUp) and given_up.is_users_mistake
        assert f"environments[{name}].verifiers: it cannot be loaded" in given_up.reason


def test_a_limit_of_turns_ends_an_episode_without_a_failure(name: str, tmp_path: Path) -> None:
    (row, *_) = rows(name)
    limits = {"maxTurns": 2, "callTimeoutSeconds": 4}
    with asking(tmp_path, environment(name, arguments_of(name), **limits)) as driver:
        number = driver.start(task=row["task"])
        assert isinstance(driver.hear(), TurnWanted)
        assert isinstance(driver.say(number, "5"), TurnWanted)
        over = driver.say(number, "4")
        assert isinstance(over, EpisodeOver) and over.episode.reward == 0.0


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def loaded_processes(name: str) -> Iterator[int]:
    """Processes of pods of this test that have an environment loaded."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_program = str(python_of(name)).encode() in (process / "cmdline").read_bytes().split(b"\0")
            if is_program and parent_of(parent_of(int(process.name))) == os.getpid():
                yield int(process.name)


def test_a_lost_process_of_verifiers_is_replaced_for_the_next_attempt(name: str, tmp_path: Path) -> None:
    (*_, row) = rows(name)
    with asking(tmp_path, environment(name, arguments_of(name), retries=2)) as driver:
        for _ in range(2):
            number = driver.start(task=row["task"])
            assert isinstance(driver.hear(), TurnWanted)
            assert ended(driver.say(number, "3")).reward == 1.0
            (process,) = loaded_processes(name)
            handle = os.pidfd_open(process)
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            assert select.select([handle], [], [], PATIENT_S)[0]
            os.close(handle)


def test_a_version_that_is_too_old_is_refused_with_the_one_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers_program.metadata, "version", lambda _: "0.1.9.post3")
    with pytest.raises(RuntimeError, match=r"has verifiers 0\.1\.9\.post3; install 0\.1\.10 or newer there"):
        verifiers_program._interface("higher", {})
