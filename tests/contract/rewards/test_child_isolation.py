"""Code of users shares the scoring process, and cannot take its requests or answer them."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from longshore.api.reward import RewardFunction, RewardKind
from longshore_runtime.rewards import child_scorer as scorer_module
from longshore_runtime.rewards.child_process import ChildProcess
from longshore_runtime.rewards.child_scorer import ChildScorer
from longshore_runtime.rewards.scoring import RewardFault, ScoreItem

LIMIT_S = 120.0
FUNCTION = RewardFunction(name="mine", kind=RewardKind.PYTHON, import_path=f"{__name__}:reward", timeout_s=LIMIT_S)


def reward(prompt: str, response: str, answer: str) -> float:
    """Do what the response says."""
    match response:
        case "read":
            return float(len(sys.stdin.read()))
        case "run a program that reads":
            return float(len(subprocess.check_output(["cat"])))
        case "leave a program that reads":
            subprocess.Popen(["cat"], stdout=subprocess.DEVNULL, close_fds=False)
        case "fork and return twice":
            os.fork()
        case "fork and raise twice":
            os.fork()
            raise ValueError("twice")
        case "fork and live on" if os.fork() == 0:
            os.execvp("sleep", ["sleep", str(LIMIT_S)])
        case "fork, live on and die":
            if os.fork() == 0:
                os.execvp("sleep", ["sleep", str(LIMIT_S)])
            os._exit(1)
    return 0.5


@pytest.fixture
def scorer() -> Iterator[ChildScorer]:
    scorer = ChildScorer(FUNCTION)
    yield scorer
    scorer.close()


def item(response: str) -> ScoreItem:
    return ScoreItem("row 7", "prompt", response, "answer", {})


@pytest.mark.parametrize("response", ["read", "run a program that reads"])
def test_standard_input_of_a_function_is_empty(scorer: ChildScorer, response: str) -> None:
    assert scorer.score(item(response)).reward == 0.0


@pytest.mark.parametrize("response", ["leave a program that reads", "fork and return twice", "fork and live on"])
def test_process_started_by_a_function_takes_and_answers_nothing(scorer: ChildScorer, response: str) -> None:
    for _ in range(3):
        assert scorer.score(item(response)).reward == 0.5
        assert scorer.score(item("read")).reward == 0.0


def test_function_that_raises_in_two_processes_fails_once(scorer: ChildScorer) -> None:
    with pytest.raises(Exception, match="twice"):
        scorer.score(item("fork and raise twice"))
    assert scorer.score(item("fine")).reward == 0.5


def test_death_is_noticed_though_a_started_process_lives_on(scorer: ChildScorer) -> None:
    with pytest.raises(RewardFault, match="the scoring process died"):
        scorer.score(item("fork, live on and die"))


class Written(ChildProcess):
    """A child whose replies are already in the pipe; it reads nothing."""

    def __init__(self, replies: bytes) -> None:
        self._unread, requests = os.pipe()
        read, write = os.pipe()
        os.write(write, replies)
        os.close(write)
        super().__init__(requests, read)

    def kill(self) -> None:
        self._close_pipes()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    return lambda replies: monkeypatch.setattr(scorer_module, "start_child", lambda kind: Written(replies))


def test_reply_to_an_earlier_request_is_dropped(written: Callable[[bytes], None]) -> None:
    written(b'{"number":1,"ready":true}\n{"number":1,"reward":1.0}\n{"number":2,"reward":0.25}\n')
    scorer = ChildScorer(FUNCTION)
    assert scorer.score(item("")).reward == 0.25
    scorer.close()


def test_reply_that_cannot_be_read_is_a_fault(written: Callable[[bytes], None]) -> None:
    written(b'{"number":1,"ready":true}\nreward: 1.0\n{"number":2,"reward":0.25}\n')
    scorer = ChildScorer(FUNCTION)
    with pytest.raises(RewardFault, match="row 7: the scoring process died"):
        scorer.score(item(""))
