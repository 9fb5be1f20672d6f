"""A pod that stood still while a response was scored does not give it a reward of 0."""

import pytest

from longshore_runtime.rewards import scorer as scorer_module
from longshore_runtime.rewards.scorer import ChildScorer
from longshore_runtime.rewards.scoring import RewardFault
from tests.contract.rewards import test_child_scorer as users


def test_a_limit_that_is_noticed_late_is_a_fault_and_not_the_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = ChildScorer(users.function(f"{users.__name__}:misbehaving", timeout_s=0.1))
    assert scorer.score(users.item("hang")).timed_out
    monkeypatch.setattr(scorer_module, "_STALL_S", -1.0)  # Noticing it takes some time; so every limit is noticed late.
    with pytest.raises(RewardFault, match=r"^reward mine: row 7, response 0-7-1: the pod stood still while it was"):
        scorer.score(users.item("hang"))
    monkeypatch.undo()
    assert 0.5 in (scorer.score(users.item("fine")).reward for _ in range(60)), "the next response is scored"
    scorer.close()
