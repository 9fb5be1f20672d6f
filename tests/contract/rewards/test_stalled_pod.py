"""A pod that stood still while a response was scored does not give it a reward of 0."""

import time
from pathlib import Path

import pytest

from longshore_runtime.rewards import child_scorer as scorer_module
from longshore_runtime.rewards.child_scorer import ChildScorer
from tests.contract.rewards import test_child_scorer as users


def test_a_response_is_scored_again_if_its_limit_was_noticed_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = users.function(f"{__name__}:slow_at_first", timeout_s=users.LIMIT_S)
    scorer = ChildScorer(function)
    monkeypatch.setattr(scorer_module, "_STALL_S", -1.0)  # Every limit is noticed late.
    scorer._function = function.model_copy(update={"timeout_s": 0.5})
    late = users.item(str(tmp_path / "was called"))
    while not (scored := scorer.score(late)).reward:  # On a busy machine the second one may be late, too.
        assert scored.timed_out
    assert (tmp_path / "was called").exists()
    scorer.close()


def slow_at_first(prompt: str, response: str, answer: str) -> float:
    """A reward whose first call hangs."""
    was_called = Path(response)
    if not was_called.exists():
        was_called.touch()
        time.sleep(users.LIMIT_S)
    return 0.5


def test_a_response_that_makes_the_pod_stand_still_each_time_is_worth_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = ChildScorer(users.function(f"{users.__name__}:misbehaving", timeout_s=0.1))
    monkeypatch.setattr(scorer_module, "_STALL_S", -1.0)
    cut_off = scorer.score(users.item("hang"))
    assert (cut_off.reward, cut_off.timed_out) == (0.0, True)
    scorer.close()
