"""Engines that sample with other weights than are trained: the round is not trained on, and sampled again once."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.api.rollout import Handover, Strategy
from longshore_runtime.backends.engine_protocol import Completion
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.errors import LogProbMismatch, UserError
from longshore_runtime.trainer.acceptance import require_trainable
from tests.properties import examples
from tests.unit.runtime.scripted_loop import ALGORITHM, NUM_STEPS, Outcome, plain_run, run

UNDISTURBED = plain_run()
NUM_ROUNDS = len(UNDISTURBED.ledger)
STRICT = [Strategy.SYNCHRONOUS, Strategy.TAIL_BATCHING, Strategy.REORDER_ROLLOUT, Strategy.GROUP_PIPELINE]


def only(*publications: int) -> Callable[[int], bool]:
    """Engines whose weights are stale after these publications, counted from 1, which comes before the first round."""
    return lambda publication: publication in publications


def trained_alike(outcome: Outcome, other: Outcome) -> bool:
    return (outcome.ledger, outcome.model) == (other.ledger, other.model)


@pytest.mark.parametrize("number", range(1, NUM_ROUNDS + 1))
def test_a_round_of_stale_engines_is_sampled_again_and_the_run_ends_undisturbed(number: int) -> None:
    """Every draw is trained on once, with the tokens of the right weights."""
    outcome = run(stale=only(number))
    assert trained_alike(outcome, UNDISTURBED)
    rounds = [[one for one in UNDISTURBED.sampled if one[1] == version] for version in range(NUM_ROUNDS)]
    repeated = [*rounds[:number], *rounds[number - 1 :]]
    assert outcome.sampled == [one for requests in repeated for one in requests], "the same draws, and nothing else"
    assert [reason for reason, _ in outcome.notices] == ["LogProbMismatch"]
    assert outcome.notices[0][1].startswith(
        f"in step {number} the log-probabilities of engines and trainers differ by 3.1 per token (mean), and the "
        "limit is 0.1"
    )


@pytest.mark.parametrize("strategy", STRICT)
def test_so_it_is_with_every_strategy_that_is_strictly_on_policy(strategy: Strategy) -> None:
    options: dict[str, Any] = {}
    if strategy is Strategy.GROUP_PIPELINE:
        options["handover"] = Handover.PIPELINED
        options["algorithm"] = ALGORITHM.model_copy(update={"prompts_per_update": 2})
    undisturbed = run(strategy=strategy, **options)
    assert len(undisturbed.ledger) >= NUM_STEPS
    outcome = run(strategy=strategy, stale=only(1, 3), **options)
    assert len(outcome.notices) == 2
    assert trained_alike(outcome, undisturbed)


@pytest.mark.parametrize("number", range(1, NUM_ROUNDS + 1))
def test_engines_that_stay_stale_fail_the_job_before_it_trains_on_their_tokens(number: int, tmp_path: Path) -> None:
    outcome = run(stale=lambda publication: publication >= number, root=tmp_path, every=1)
    assert outcome.error.startswith(
        f"rollout.maxLogProbMismatch: in step {number} the log-probabilities of engines and trainers differ by 3.1 per "
        "token (mean), and the limit is 0.1, and by 3.1 before the engines got the weights again"
    )
    assert outcome.ledger == UNDISTURBED.ledger[: number - 1]
    assert len(outcome.notices) == 1, "reloaded once"
    checkpoints = sorted((tmp_path / "output" / "checkpoints").iterdir())
    state = json.loads((checkpoints[-1] / "trainer" / "trainer.json").read_text()) if checkpoints else {}
    assert state.get("policy_version", 0) == number - 1

    fixed = run(root=tmp_path, every=1)
    assert trained_alike(fixed, UNDISTURBED), "a job that goes on from there loses nothing"


@settings(deadline=None, max_examples=examples(30))
@given(
    st.sets(st.integers(1, 2 * NUM_ROUNDS), max_size=4),
    st.sets(st.integers(1, 2 * UNDISTURBED.num_calls), max_size=2),
    st.integers(1, 5),
)
def test_whatever_is_stale_and_lost_nothing_is_trained_twice_or_left_out(
    stale: set[int], losses: set[int], every: int
) -> None:
    """Either the job fails, having trained the first steps as ever, or it ends as if nothing had been."""
    outcome = run(losses, every=every, stale=only(*stale))
    if outcome.error:
        assert "rollout.maxLogProbMismatch" in outcome.error
        assert outcome.ledger == UNDISTURBED.ledger[: len(outcome.ledger)]
    else:
        assert trained_alike(outcome, UNDISTURBED)


def test_a_job_that_is_not_strict_trains_on_and_reports_a_lasting_mismatch_once() -> None:
    outcome = run(max_mismatch=None, stale=lambda publication: publication in (2, 3))
    assert outcome.sampled == UNDISTURBED.sampled
    assert len(outcome.ledger) == NUM_ROUNDS
    assert [reason for reason, _ in outcome.notices] == ["LogProbMismatch"]
    raised = [tuple(alarm.reason for alarm in report.alarms) for report in outcome.reports]
    assert ("LogProbMismatch",) in raised and raised[-1] == ()


def test_tokens_of_older_weights_are_not_compared() -> None:
    """Kept tokens of partial responses come from engines that were right then; only new ones are held to the limit."""
    outcome = run(strategy=Strategy.PARTIAL_ROLLOUT, max_mismatch=None)
    assert any(len(row["policy_versions"]) > 1 for row in outcome.ledger), "tokens were kept"
    assert outcome.notices == []


def test_alarms_reach_the_status_and_a_restart_does_not_report_them_again(tmp_path: Path) -> None:
    def worthless(place: int, completion: Completion) -> float:
        return 0.0

    first = run(root=tmp_path, reward=worthless, every=1)
    assert [reason for reason, _ in first.notices] == ["RewardsAllZero"]
    more = ALGORITHM.model_copy(update={"steps": len(first.ledger) + 2})
    second = run(root=tmp_path, reward=worthless, every=1, algorithm=more)
    assert second.notices == []
    (alarm,) = second.reports[-1].alarms
    assert (alarm.reason, alarm.step) == ("RewardsAllZero", 5), "the first step of a long round"
    assert "data.answerField" in alarm.message


def test_an_update_is_judged_by_the_mean_over_all_replicas() -> None:
    """One token that rounding moved far does not refuse a step; a replica with few tokens does not weigh more."""
    many = GradientSums(num_compared_tokens=999, mismatch=0.999)
    few = GradientSums(num_compared_tokens=1, mismatch=9.0, mismatch_max=9.0)
    require_trainable([many, few], 0.01)
    with pytest.raises(LogProbMismatch) as refusal:
        require_trainable([many, few], 0.009)
    assert refusal.value.mean == pytest.approx(0.009999)


def test_without_a_limit_or_without_tokens_to_compare_nothing_is_refused() -> None:
    require_trainable([GradientSums(num_compared_tokens=1, mismatch=math.nan)], None)
    require_trainable([GradientSums(num_loss_tokens=5)], 0.1)


def test_log_probabilities_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(LogProbMismatch):
        require_trainable([GradientSums(num_compared_tokens=1, mismatch=math.nan)], 1000.0)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_finite_number_never_reaches_the_weights(loss: float) -> None:
    with pytest.raises(UserError, match=f"algorithm.learningRate: the loss is {loss}, and no optimizer step"):
        require_trainable([GradientSums(num_compared_tokens=1), GradientSums(loss=loss)], 0.1)
