"""Scoring happens in another process, within its time, and never becomes a silent zero."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from longshore.api.reward import RewardFunction, RewardKind, Signature
from longshore_runtime.rewards import child_scorer as scorer_module
from longshore_runtime.rewards.child_scorer import ChildScorer
from longshore_runtime.rewards.scoring import RewardError, RewardFault, RewardSetupError, ScoreItem

REPOSITORY = Path(__file__).parents[3]
LIMIT_S = 180.0


class Silent(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def misbehaving(prompt: str, response: str, answer: str) -> object:
    """A user's reward that does what the response says."""
    match response:
        case "raise":
            raise KeyError("missing")
        case "nan":
            return float("nan")
        case "text":
            return "1.0"
        case "bool":
            return True
        case "not unicode":
            raise ValueError("\ud83d")
        case "silent":
            raise Silent
        case "return silent":
            return Silent()
        case "exit":
            sys.exit(0)
        case "hang":
            while True:
                time.sleep(1)
        case "count and hang":
            with Path(prompt).open("a") as calls:
                calls.write("x")
            threading.Event().wait()
        case "die":
            os._exit(3)
        case "tell and hang":
            reported = Path(prompt)
            reported.with_suffix(".new").write_text(str(os.getpid()))
            reported.with_suffix(".new").replace(reported)
            threading.Event().wait()
        case "print":
            print("noise that must not be taken for an answer")
            return 0.25
        case "pid":
            return os.getpid()
        case "environment":
            return float(prompt in os.environ)
    return 0.5


@pytest.fixture(scope="module")
def scorer() -> Iterator[ChildScorer]:
    scorer = ChildScorer(function(f"{__name__}:misbehaving"))
    yield scorer
    scorer.close()


def function(import_path: str, timeout_s: float = LIMIT_S) -> RewardFunction:
    return RewardFunction(name="mine", kind=RewardKind.PYTHON, import_path=import_path, timeout_s=timeout_s)


def item(response: str) -> ScoreItem:
    return ScoreItem("row 7, response 0-7-1", "prompt", response, "answer", {})


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ("raise", r"mine: row 7, response 0-7-1: raised KeyError: 'missing'"),
        ("nan", "returned nan"),
        ("text", "returned '1.0' instead of a number"),
        ("bool", r"returned True instead of a number: convert booleans with float\(\)"),
        ("not unicode", r"raised ValueError: \\ud83d at test_child_scorer.py:\d+ in misbehaving: raise ValueError\("),
        ("silent", r"raised Silent: <its text cannot be shown: str\(\) raises RuntimeError> at "),
        ("return silent", "returned <Silent whose repr raises RuntimeError> instead of a number"),
        ("exit", r"raised SystemExit: 0 at test_child_scorer.py:\d+ in misbehaving: sys.exit\(0\)"),
    ],
)
def test_a_reward_that_fails_is_an_error_that_names_reward_and_sample(
    scorer: ChildScorer, response: str, message: str
) -> None:
    with pytest.raises(RewardError, match=message):
        scorer.score(item(response))
    assert scorer.score(item("fine")).reward == 0.5


def test_a_process_that_dies_is_a_fault_and_not_the_responses(scorer: ChildScorer) -> None:
    with pytest.raises(RewardFault, match="reward mine: row 7, response 0-7-1: the scoring process died"):
        scorer.score(item("die"))
    assert scorer.score(item("fine")).reward == 0.5


def test_a_long_response_is_cut_off_too_if_the_process_reads_no_more() -> None:
    scorer = ChildScorer(function(f"{__name__}:misbehaving", timeout_s=2.0))
    pid = int(in_time(scorer, "pid"))
    assert pid in (child.pid for child in psutil.Process().children(recursive=True))
    os.kill(pid, signal.SIGSTOP)
    cut_off = scorer.score(item("x" * (1 << 20)))
    assert (cut_off.reward, cut_off.timed_out) == (0.0, True)
    assert in_time(scorer, "x" * (1 << 20)) == 0.5
    scorer.close()


def in_time(scorer: ChildScorer, response: str) -> float:
    """Reward of a response, of the first try that is not late: on a busy machine any may be."""
    tries = (scorer.score(item(response)) for _ in range(60))
    return next(found.reward for found in tries if not found.timed_out)


WORKER = """
import sys
from longshore_runtime.rewards.child_scorer import ChildScorer
from longshore_runtime.rewards.scoring import ScoreItem
from tests.contract.rewards.test_child_scorer import misbehaving, function
scorer = ChildScorer(function(f"{misbehaving.__module__}:misbehaving", timeout_s=3600.0))
scorer.score(ScoreItem("row 7", sys.argv[1], "tell and hang", "answer", {}))
"""


def test_a_process_ends_with_its_worker_also_while_it_scores(tmp_path: Path) -> None:
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path / "pid")], cwd=REPOSITORY)
    while not (tmp_path / "pid").exists():
        assert worker.poll() is None, "it scores"
        time.sleep(0.05)
    scoring = psutil.Process(int((tmp_path / "pid").read_text()))
    worker.kill()
    worker.wait()
    scoring.wait(LIMIT_S)


def test_what_a_reward_prints_is_not_taken_for_an_answer(scorer: ChildScorer) -> None:
    assert scorer.score(item("print")).reward == 0.25


def test_what_a_reward_prints_is_in_the_log_also_if_its_process_is_killed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    scorer = ChildScorer(function(f"{__name__}:misbehaving"))
    scorer.score(item("print"))
    scorer.close()
    assert "noise that must not be taken for an answer" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("variable", "is_seen"),
    [("OPENAI_API_KEY", 1.0), ("LONGSHORE_REWARD_TOKEN", 0.0), ("RAY_AUTH_TOKEN_PATH", 0.0), ("KUBECONFIG", 0.0)],
)
def test_reward_code_sees_variables_of_the_pod_but_not_those_of_the_job(
    scorer: ChildScorer, monkeypatch: pytest.MonkeyPatch, variable: str, is_seen: float
) -> None:
    monkeypatch.setenv(variable, "/secret")
    scorer.close()
    assert scorer.score(ScoreItem("row 7", variable, "environment", "", {})).reward == is_seen


def test_an_import_path_that_leads_nowhere_is_reported_by_its_field_before_scoring() -> None:
    with pytest.raises(RewardError, match=r"reward.functions\[mine\].importPath: 'no_such_module:score' cannot be"):
        ChildScorer(function("no_such_module:score"))


def slow_at_first(prompt: str, response: str, answer: str) -> float:
    """A reward that loads something at its first call, for as long as `prompt` says."""
    global _is_loaded
    if not _is_loaded:
        time.sleep(float(prompt))
        _is_loaded = True
    return 0.75


_is_loaded = False


def slow_always(prompt: str, response: str, answer: str) -> float:
    """A reward that takes as long as `prompt` says."""
    time.sleep(float(prompt))
    return 1.0


def two_arguments(prompt: str, response: str) -> float:
    """A reward of another signature."""
    return 1.0


def picky(prompt: str, response: str, answer: str) -> float:
    """A reward that scores some responses only."""
    return float(response)


not_callable = 3


def rehearsed(name: str, responses: list[str], prompt: str = "0", **options: Any) -> ChildScorer:
    function = RewardFunction(name="mine", kind=RewardKind.PYTHON, import_path=f"{__name__}:{name}", **options)
    return ChildScorer(function, [ScoreItem(f"line {n}", prompt, one, "", {}) for n, one in enumerate(responses)])


@pytest.mark.parametrize(
    ("name", "responses", "reported"),
    [
        (
            "misbehaving",
            ["hang"] * 3,
            r"\.timeoutSeconds: reward mine: line 0: .*:misbehaving does not return within 1 s at its first call; load",
        ),
        ("misbehaving", ["die"] * 3, r"\.importPath: reward mine: line 0: .*:misbehaving ends its process"),
        (
            "misbehaving",
            ["raise", "nan"],
            r"\.importPath: it scores none of the 2 rows .* line 0: raised KeyError: 'missing' at "
            r"test_child_scorer.py:\d+ in misbehaving: raise KeyError\(.missing.\)\. "
            r"Response: 'raise'\. Row: prompt: '0', answer: ''$",
        ),
        ("two_arguments", ["1"], r"\.importPath: it scores none of the 1 rows that were tried: .* takes 2 positional"),
        ("not_callable", ["1"], r"\.importPath: '.*:not_callable' is no function"),
        (
            "absent",
            ["1"],
            r"\.importPath: '.*:absent' cannot be imported \(AttributeError: module .* has no 'absent'\)",
        ),
    ],
)
def test_a_function_that_scores_nothing_is_refused_before_it_is_used(
    name: str, responses: list[str], reported: str
) -> None:
    limit_s = 1.0 if "hang" in responses else LIMIT_S
    with pytest.raises(RewardSetupError, match=rf"reward\.functions\[mine\]{reported}"):
        rehearsed(name, responses, timeout_s=limit_s)


def test_a_function_that_is_slow_for_every_row_would_score_zero_for_ever() -> None:
    reported = r"reward\.functions\[mine\]\.timeoutSeconds: all 2 rows that were tried took longer than 2 s"
    with pytest.raises(RewardSetupError, match=reported):
        rehearsed("slow_always", ["1", "1"], prompt="2.5")


def test_first_call_may_take_longer_where_no_limit_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing but the first call is slow, and a response gets a reward in the end also on a busy machine.
    monkeypatch.setattr(scorer_module, "_WARM_UP_TIMEOUT_S", LIMIT_S)
    scorer = rehearsed("slow_at_first", ["1"] * 5, prompt="2.5")
    scorer.close()
    assert in_time(scorer, "fine") == 0.75
    scorer.close()


def test_first_call_has_another_chance_if_the_pod_stood_still(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scorer_module, "_STALL_S", -1.0)  # Every limit is noticed late.
    with pytest.raises(RewardSetupError, match="does not return within 1 s at its first call"):
        rehearsed("misbehaving", ["count and hang"], prompt=str(tmp_path / "calls"), timeout_s=1.0)
    assert (tmp_path / "calls").read_text() == "xx"


def test_one_odd_row_is_no_reason_to_refuse() -> None:
    scorer = rehearsed("picky", ["odd", "1"])
    assert scorer.score(item("0.5")).reward == 0.5
    scorer.close()
    rehearsed("picky", ["odd"], on_error="Replace").close()


TRL = "tests.contract.rewards.users.trl_reward"


def rehearsed_as_trl(name: str, messages: Sequence[Mapping[str, object]] = ()) -> ChildScorer:
    function = RewardFunction(
        name="mine", kind=RewardKind.PYTHON, import_path=f"{TRL}:{name}", signature=Signature.TRL, timeout_s=30.0
    )
    return ChildScorer(function, [ScoreItem("line 1", "6*7?", "42", "42", {"solution": "42"}, messages=messages)])


@pytest.mark.parametrize(
    ("name", "messages", "seen"),
    [
        (
            "len_reward",
            [{"role": "user", "content": "6*7?"}],
            "line 1 gets 0 alone, and 0.5 beside a response of twice",
        ),
        ("best_of_group", [], "line 1 gets 1 alone, and 0 beside a response of twice its length"),
    ],
)
def test_a_function_that_compares_responses_with_each_other_is_refused(
    name: str, messages: Sequence[Mapping[str, object]], seen: str
) -> None:
    reported = rf"reward\.functions\[mine\]\.importPath: '{TRL}:{name}' compares responses with each other: {seen}.*; "
    with pytest.raises(RewardSetupError, match=reported + "Longshore scores every response alone, so use"):
        rehearsed_as_trl(name, messages)


@pytest.mark.parametrize("name", ["format_reward", "of_batch", "of_chance", "of_new", "of_one"])
def test_a_function_that_judges_each_response_alone_is_taken(name: str) -> None:
    rehearsed_as_trl(name).close()


@pytest.mark.parametrize(
    ("code", "reported"),
    [
        ("def f(:", "SyntaxError"),
        ("raise ValueError('no key')", "ValueError: no key at broken_reward.py:1 in <module>: raise V"),
        ("exit(3)", "SystemExit: 3"),
    ],
)
def test_a_module_that_cannot_be_imported_is_reported_whatever_it_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, reported: str
) -> None:
    (tmp_path / "broken_reward.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(RewardSetupError, match=rf"importPath: 'broken_reward:f' cannot be imported \({reported}"):
        ChildScorer(function("broken_reward:f"))
