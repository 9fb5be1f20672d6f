"""Scoring processes of mathematics are forks of one process, which is started when it is needed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from longshore.api.reward import RewardFunction, RewardKind
from longshore_runtime.rewards.child_process import ChildProcess, start_child
from longshore_runtime.rewards.child_scorer import ChildScorer
from longshore_runtime.rewards.scoring import ScoreItem
from tests.commands import command_of

REPOSITORY = Path(__file__).parents[3]
LIMIT_S = 120.0
OPTIONS = b'{"number": 1, "kind": "Maths", "import_path": null, "signature": "Longshore", "modules": null}\n'
SAMPLE = b'{"number": 2, "prompt": "", "response": "\\\\boxed{1/2}", "answer": "0.5", "is_cut": false, "state": null}\n'


def lines_of(child: ChildProcess, num_lines: int) -> list[bytes]:
    """What it answers."""
    answers = b""
    while answers.count(b"\n") < num_lines:
        read = os.read(child.replies, 4096)
        assert read, "it has ended"
        answers += read
    return answers.splitlines()


@pytest.fixture
def child() -> Iterator[ChildProcess]:
    child = start_child(RewardKind.MATHS)
    yield child
    child.kill()


def forks() -> set[psutil.Process]:
    """Children of the process that is forked."""
    (template,) = templates()
    return set(template.children())


def has_ended(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    return True


def templates() -> list[psutil.Process]:
    """Processes that this one has started in order to fork them."""
    return [one for one in psutil.Process().children() if is_template(one)]


def is_template(process: psutil.Process) -> bool:
    return "child_template" in command_of(process)


def test_a_fork_scores_as_a_new_process_does(child: ChildProcess) -> None:
    os.write(child.requests, OPTIONS + SAMPLE)
    assert lines_of(child, 2) == [b'{"number":1,"ready":true,"takes_state":false}', b'{"number":2,"reward":1.0}']


def test_forks_have_one_process_in_common(child: ChildProcess) -> None:
    (before,) = templates()
    other = start_child(RewardKind.MATHS)
    assert templates() == [before]
    other.kill()


def test_a_fork_that_is_killed_is_gone_and_the_others_go_on(child: ChildProcess) -> None:
    before = forks()
    other = start_child(RewardKind.MATHS)
    (process,) = forks() - before
    other.kill()
    assert has_ended(process)
    os.write(child.requests, OPTIONS)
    assert lines_of(child, 1) == [b'{"number":1,"ready":true,"takes_state":false}']


@pytest.mark.parametrize("kind", [RewardKind.MATHS, RewardKind.TASK])
def test_a_process_may_be_ended_by_several_threads(kind: RewardKind) -> None:
    child = start_child(kind)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: child.kill(), range(8)))
    with pytest.raises(ValueError, match="closed"):
        os.write(child.requests, OPTIONS)


def test_a_fork_ends_when_nobody_holds_its_input() -> None:
    """As when the worker that started it is killed."""
    child = start_child(RewardKind.MATHS)
    os.write(child.requests, OPTIONS)
    lines_of(child, 1)
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), child.requests)  # Closes this end of its pipe.
    assert os.read(child.replies, 1) == b"", "the pipe of its output has no other end any more"
    child.kill()


def test_another_process_is_forked_when_the_first_is_gone() -> None:
    """The kernel ends processes for want of memory."""
    start_child(RewardKind.MATHS).kill()
    (template,) = templates()
    template.kill()
    template.wait(LIMIT_S)
    scorer = ChildScorer(RewardFunction(name="maths", kind=RewardKind.MATHS, timeout_s=LIMIT_S))
    item = ScoreItem("row 1", "", "\\boxed{1/2}", "0.5", {})
    assert scorer.score(item).reward == 1.0
    scorer.close()
    assert [other.pid for other in templates()] != [template.pid]


PARENT = """
import os
from longshore.api.reward_kind import RewardKind
from longshore_runtime.rewards.child_process import start_child
import psutil, sys
child = start_child(RewardKind.MATHS)
print(*[one.pid for one in psutil.Process().children(recursive=True)], flush=True)
os._exit(0)
"""


def test_all_of_them_end_with_the_process_that_started_them() -> None:
    ran = subprocess.run([sys.executable, "-c", PARENT], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    pids = [int(pid) for pid in ran.stdout.split()]
    assert len(pids) == 2, ran.stderr
    for pid in pids:
        try:
            psutil.Process(pid).wait(LIMIT_S)
        except psutil.NoSuchProcess:
            continue


def test_nothing_of_the_pod_is_in_the_environment_of_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    for template in templates():
        template.kill()
        template.wait(LIMIT_S)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/var/run/longshore/ray/token")
    child = start_child(RewardKind.MATHS)
    (process,) = forks()
    assert "RAY_AUTH_TOKEN_PATH" not in process.environ()
    child.kill()
