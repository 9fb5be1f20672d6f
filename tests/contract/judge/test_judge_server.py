"""The main program of a judge pod, with vLLM on the CPU."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from longshore.api import contract
from longshore.api.contract import ExitCode
from longshore.api.spec import RLJobSpec
from longshore_runtime.backends.judge_server import has_chat_template
from longshore_runtime.backends.streamed_lm.judge import StreamedJudge
from longshore_runtime.backends.tiny_model import build_tiny_model
from longshore_runtime.errors import UserError
from longshore_runtime.judge.options import RemoteJudgeOptions, StreamedJudgeOptions
from longshore_runtime.judge.teacher import RemoteTeacher
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import ScoreItem
from longshore_runtime.trajectories.trajectory import token_ids
from tests.addresses import network
from tests.commands import command_of
from tests.e2e.reward_inputs import write_judge

pytestmark = pytest.mark.timeout(300)

TOKEN: Final = "s3cret"
START_TIMEOUT_S: Final = 200.0
JUDGE: Final = {"promptTemplate": "Grade: {response}", "scorePattern": r"(\d)", "maxScore": 9, "maxTokens": 4}


@dataclass
class Pod:
    """A judge pod of a job with one judge, played by a process."""

    root: Path
    process: subprocess.Popen[bytes]

    @property
    def address_file(self) -> Path:
        return self.root / "storage/out/judges/critic/0.json"

    @property
    def reason(self) -> str:
        return (self.root / "why").read_text()

    def server_pid(self) -> int | None:
        """The process that serves, once there is one."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else None

    def wait(self, condition: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not condition():
            assert self.process.poll() is None, f"the pod ended: {self.reason}"
            assert time.monotonic() < deadline_s, "the pod takes too long"
            time.sleep(0.1)


def spec() -> RLJobSpec:
    function = {"placement": "Pool", "modelPath": "judge", "pool": {"gpusPerPod": 0}, **JUDGE}
    values: dict[str, Any] = {
        "model": {"builtin": "Tiny"},
        "data": {"builtin": "Counting"},
        "algorithm": {"steps": 1, "promptsPerStep": 4, "responsesPerPrompt": 2, "maxResponseTokens": 64},
        "storage": {"create": {"size": "1Gi"}, "output": "out"},
        "reward": {"functions": [{"name": "critic", "kind": "Judge", "judge": function}]},
    }
    return RLJobSpec.model_validate(values)


def environment(root: Path) -> dict[str, str]:
    return {
        contract.ENV_JOB_NAME: "demo",
        contract.ENV_JOB_NAMESPACE: "team",
        contract.ENV_JOB_UID: "0123456789",
        contract.ENV_ATTEMPT: "1",
        contract.ENV_COMPONENT: "judge",
        contract.ENV_INDEX: "0",
        contract.ENV_POD_NAME: "demo-judge-0",
        contract.ENV_POD_IP: f"{network()}.4.6",
        contract.ENV_COORDINATOR_ADDRESS: f"{network()}.4.7",
        contract.ENV_CONFIG: str(root / "spec.json"),
        contract.ENV_STORAGE: str(root / "storage"),
        contract.ENV_TERMINATION_LOG: str(root / "why"),
        contract.ENV_JUDGE_TOKEN: str(root / "tokens/critic"),
        contract.ENV_REWARD_TOKENS: str(root / "tokens"),
    }


def started(root: Path) -> Pod:
    (root / "tokens").mkdir(parents=True)
    (root / "tokens/critic").write_text(TOKEN)
    (root / "spec.json").write_text(spec().model_dump_json(by_alias=True))
    command = [sys.executable, "-m", "longshore_runtime", "judge"]
    return Pod(root, subprocess.Popen(command, env=os.environ | environment(root)))


@pytest.fixture
def pods() -> Iterator[Callable[[Path], Pod]]:
    made: list[Pod] = []

    def make(root: Path) -> Pod:
        made.append(started(root))
        return made[-1]

    yield make
    for pod in made:
        pod.process.terminate()
        pod.process.wait(30)


def test_a_pod_serves_the_judge_to_those_with_the_token_until_its_server_is_lost(
    tmp_path: Path, pods: Callable[[Path], Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "storage/judge"
    write_judge(model)
    pod = pods(tmp_path)
    pod.wait(pod.address_file.exists)

    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    (function,) = spec().reward.functions
    critic = ScorerFactory((function,), "out").create(function)
    items = [ScoreItem(f"line {n}", "?", f"a verse {last}", "", {}) for n, last in enumerate("abcdxyz")]
    rewards = [critic.score(item).reward for item in items]
    assert len(set(rewards)) > 1
    colocated = StreamedJudge(StreamedJudgeOptions(model, accelerator=False))
    replies = colocated.complete([f"Grade: {item.response}" for item in items], 4)
    assert rewards == [pytest.approx(int(reply[-1]) / 9) for reply in replies], "as the same model does in a worker"

    url = json.loads(pod.address_file.read_text())["url"]
    assert url == f"http://{network()}.4.6:{contract.JUDGE_PORT}/v1"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{url}/models")
    server = pod.server_pid()
    assert server is not None
    assert TOKEN not in Path(f"/proc/{server}/cmdline").read_text()
    assert_engine_is_a_fork_of_the_server(psutil.Process(server))

    os.kill(server, signal.SIGKILL)
    assert pod.process.wait(30) == 1, "a crash: the pod is replaced"
    assert pod.reason == "the server of the judge ended with code -9"


@pytest.mark.soak
def test_a_server_of_vllm_is_a_teacher(tmp_path: Path, pods: Callable[[Path], Pod]) -> None:
    build_tiny_model(tmp_path / "storage/judge", seed=7)
    pod = pods(tmp_path)
    pod.wait(pod.address_file.exists)
    url = json.loads(pod.address_file.read_text())["url"].removesuffix("/completions")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "storage/judge")
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "storage/judge")
    conversations = [(token_ids(range(4, 4 + size)), token_ids(range(9, 9 + 3 * size))) for size in range(1, 20)]
    teacher = RemoteTeacher(RemoteJudgeOptions(url, "judge", tmp_path / "tokens/critic"))
    try:
        teacher.require_same_tokens(token_ids(range(128)), lambda token: str(tokenizer.decode([token])))
        for (prompt, following), found in zip(conversations, teacher.ask(conversations).result(), strict=True):
            ids = torch.tensor([[*prompt, *following]])
            with torch.no_grad():
                every = torch.log_softmax(model(ids).logits[0, :-1], dim=-1).gather(-1, ids[0, 1:, None])[:, 0]
            np.testing.assert_allclose(found, every[len(prompt) - 1 :], atol=1e-4)
        with pytest.raises(UserError, match=r"^algorithm.objective.teacher.endpoint: .* answered 400 \(.*vocab"):
            teacher.ask([(token_ids([5]), token_ids([5_000]))]).result()
        with pytest.raises(UserError, match=r"^algorithm.objective.teacher.endpoint: .* answered 400 \(.*context"):
            teacher.ask([(token_ids([5]), token_ids([5] * 5_000))]).result()
    finally:
        teacher.close()


def assert_engine_is_a_fork_of_the_server(server: psutil.Process) -> None:
    """A process that is a new interpreter imports vLLM once more."""
    commands = [command_of(process) for process in server.children(recursive=True)]
    assert sum("judge_server" in command for command in commands) >= 2, "the fork server, and the engine"
    assert not any("multiprocessing.forkserver" in command for command in commands)


@pytest.mark.soak  # vLLM is imported anew.
def test_a_model_that_cannot_be_served_is_a_mistake_that_names_the_field(
    tmp_path: Path, pods: Callable[[Path], Pod]
) -> None:
    model = tmp_path / "storage/judge"
    write_judge(model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"architectures": ["Abacus"]}))
    pod = pods(tmp_path)
    assert pod.process.wait(START_TIMEOUT_S) == ExitCode.USER_ERROR
    start = "reward.functions[critic].judge.modelPath: vLLM does not serve 'judge': "
    assert pod.reason == f"{start}Model architectures ['Abacus'] are not supported for now"


def test_a_directory_that_is_no_checkpoint_is_a_mistake_too(tmp_path: Path, pods: Callable[[Path], Pod]) -> None:
    pod = pods(tmp_path)
    assert pod.process.wait(60) == ExitCode.USER_ERROR
    assert pod.reason == (
        "reward.functions[critic].judge.modelPath: 'judge' is no Hugging Face checkpoint in the storage of the job: "
        "it has no config.json"
    )


def test_a_pod_that_is_stopped_while_it_loads_leaves_nothing_behind(
    tmp_path: Path, pods: Callable[[Path], Pod]
) -> None:
    write_judge(tmp_path / "storage/judge")
    pod = pods(tmp_path)
    pod.wait(pod.server_pid)
    server = pod.server_pid()
    pod.process.terminate()
    assert pod.process.wait(30) == ExitCode.INTERRUPTED
    assert not Path(f"/proc/{server}").exists()
    assert not pod.address_file.exists()


def test_a_chat_is_asked_of_models_that_know_chats(tmp_path: Path) -> None:
    write_judge(tmp_path)
    assert has_chat_template(tmp_path)
    for file in tmp_path.glob("chat_template*"):
        file.unlink()
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert not has_chat_template(tmp_path)
