"""A judge whose pods are away, and who waits for them."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from longshore.api.reward import RewardFunction, RewardKind
from longshore_runtime.judge import pool
from longshore_runtime.judge.options import JudgeOptions, PoolJudgeOptions
from longshore_runtime.judge.reward import JudgeReward
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import ScoreItem
from longshore_runtime.rewards.transports.thread import ScoringThread
from tests.unit.runtime.reward_driver import JUDGE, LIMIT_S


def test_a_worker_ends_while_it_waits_for_the_pods_of_its_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_looked = threading.Event()

    def known(*_: Any) -> Mapping[int, str]:
        has_looked.set()
        return {}

    model = PoolJudgeOptions(tmp_path, 1, 1, "qwen", None)
    judge = JudgeReward(JudgeOptions("judge", model, "{response}", r"(\d)", 0, 9, 4))
    monkeypatch.setattr(pool, "known", known)
    monkeypatch.setattr(ScorerFactory, "create", lambda *_: judge)
    function = RewardFunction(name="judge", kind=RewardKind.JUDGE, judge=JUDGE)
    thread = ScoringThread(ScorerFactory((function,), "output"))
    thread.ready.result(LIMIT_S)
    thread.score("judge", [ScoreItem("row 7", "prompt", "response", "", {})])
    assert has_looked.wait(LIMIT_S)
    thread.kill()
    thread.ended.result(LIMIT_S)
