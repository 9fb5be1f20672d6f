"""What every kind of reward function keeps to, whether it is a process, a sandbox, a service or a model."""

import contextlib
import math
import pickle
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longshore_runtime.rewards.scoring import ResponseScorer, RewardError, RewardFault
from tests.contract.rewards.conftest import CASES, Case

RESERVED = ("status", "body", "hang", "trickle")


def test_a_right_response_is_worth_one_and_a_wrong_one_nothing(case: Case, scorer: ResponseScorer) -> None:
    for _ in range(2):
        right, wrong = scorer.score(case.item(case.right)), scorer.score(case.item(case.wrong))
        assert (right.reward, right.timed_out) == (1.0, False)
        assert (wrong.reward, wrong.timed_out) == (0.0, False)
        assert right.seconds >= 0 and wrong.seconds >= 0


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(response=st.text(max_size=40).filter(lambda text: not text.startswith(RESERVED)))
def test_whatever_a_model_says_has_a_finite_reward(case: Case, scorer: ResponseScorer, response: str) -> None:
    result = scorer.score(case.item(response))
    assert math.isfinite(result.reward) and 0.0 <= result.reward <= 1.0


@pytest.mark.parametrize("limit_s", [1.0])
@pytest.mark.parametrize("case", [kind for kind, case in CASES.items() if case.endless], indirect=True, ids=str)
def test_scoring_that_never_ends_is_cut_off_and_the_next_response_is_scored(case: Case, scorer: ResponseScorer) -> None:
    assert case.endless is not None
    if case.late_is_fault:
        with pytest.raises(RewardFault, match=r"^reward mine: data.jsonl, line 7, response 0-6-1: "):
            scorer.score(case.item(case.endless))
    else:
        cut_off = scorer.score(case.item(case.endless))
        assert (cut_off.reward, cut_off.timed_out) == (0.0, True)
    assert 1.0 in rewards_of_many_tries(scorer, case)


def rewards_of_many_tries(scorer: ResponseScorer, case: Case) -> Iterator[float]:
    """Rewards of the right response: on a busy machine it may take longer than the limit, too."""
    for _ in range(60):
        with contextlib.suppress(RewardFault):
            yield scorer.score(case.item(case.right)).reward


@pytest.mark.parametrize("case", [kind for kind, case in CASES.items() if case.broken], indirect=True, ids=str)
def test_a_failure_names_reward_and_sample_and_leaves_the_scorer_usable(case: Case, scorer: ResponseScorer) -> None:
    assert case.broken is not None
    with pytest.raises(RewardError, match=r"^reward mine: data.jsonl, line 7, response 0-6-1: ") as failure:
        scorer.score(case.item(case.broken))
    assert "\n" not in str(failure.value)
    assert str(pickle.loads(pickle.dumps(failure.value))) == str(failure.value), "it has to travel between pods"
    assert scorer.score(case.item(case.right)).reward == 1.0
