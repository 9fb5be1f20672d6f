"""Signs that a job does not learn: reported once per episode, by the cause, and cleared when the episode ends."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.api.reasons import AlarmReason
from longshore.policy.training_alarms import (
    AlarmLimits,
    AlarmState,
    RaisedAlarm,
    StepSignals,
    after_evaluation,
    after_step,
    fall_in_standard_errors,
)

LIMITS = AlarmLimits(max_mismatch=0.1, max_response_tokens=64)
WELL = StepSignals(
    num_responses=8,
    num_cut=7,
    num_timed_out=7,
    num_faults=7,
    num_groups=4,
    num_rejected=3,
    has_episodes=True,
    num_restarts=7,
    num_given_up=3,
    max_reward=1.0,
    max_advantage=1.2,
    max_grad_norm=0.3,
    has_short_round=False,
    mismatch=0.1,
)
"""Nearly everything goes wrong, and yet something is learned."""
SIGNS = {
    AlarmReason.LOG_PROB_MISMATCH: replace(WELL, mismatch=3.1),
    AlarmReason.REWARDS_TIME_OUT: replace(WELL, num_timed_out=8, max_reward=0.0, max_advantage=0.0, max_grad_norm=0.0),
    AlarmReason.REWARDS_FAULT: replace(WELL, num_faults=8),
    AlarmReason.ENVIRONMENTS_FAULT: replace(WELL, num_restarts=8),
    AlarmReason.REWARDS_ALL_ZERO: replace(WELL, max_reward=0.0, max_advantage=0.0, max_grad_norm=0.0),
    AlarmReason.REWARDS_ALL_EQUAL: replace(WELL, max_advantage=0.0, max_grad_norm=0.0),
    AlarmReason.GRADIENT_ZERO: replace(WELL, max_grad_norm=0.0),
    AlarmReason.RESPONSES_ALL_CUT: replace(WELL, num_cut=8),
}
PATIENCE = {
    AlarmReason.LOG_PROB_MISMATCH: 1, AlarmReason.REWARDS_TIME_OUT: 1, AlarmReason.REWARDS_FAULT: 1,
    AlarmReason.ENVIRONMENTS_FAULT: 1,
    AlarmReason.REWARDS_ALL_ZERO: 3, AlarmReason.REWARDS_ALL_EQUAL: 3, AlarmReason.GRADIENT_ZERO: 3,
    AlarmReason.RESPONSES_ALL_CUT: 3,
}  # fmt: skip


def run(steps: Sequence[StepSignals], state: AlarmState | None = None) -> tuple[AlarmState, list[RaisedAlarm]]:
    """Steps one after the other, from step 1."""
    state, new_alarms = state or AlarmState(), []
    for number, signals in enumerate(steps, start=1):
        state, new = after_step(state, signals, LIMITS, number)
        new_alarms += new
    return state, new_alarms


def reasons(alarms: Sequence[RaisedAlarm]) -> list[AlarmReason]:
    return [alarm.reason for alarm in alarms]


def test_a_job_that_learns_raises_nothing_however_long_it_runs() -> None:
    assert run([WELL] * 50) == (AlarmState(), [])


@pytest.mark.parametrize("reason", [AlarmReason.REWARDS_ALL_ZERO, AlarmReason.REWARDS_ALL_EQUAL])
def test_equal_rewards_raise_no_alarm_before_a_long_round_has_them(reason: AlarmReason) -> None:
    """Short rounds train on the prompts whose responses end first."""
    short = replace(SIGNS[reason], has_short_round=True)
    assert run([short] * 4 + [WELL])[1] == []
    assert [alarm.step for alarm in run([short] * 4 + [SIGNS[reason]] + [short] * 4)[1]] == [5]
    assert [alarm.step for alarm in run([short] * 20)[1]] == [12], "long rounds may be rare"


@pytest.mark.parametrize("reason", SIGNS)
def test_a_sign_is_reported_once_when_it_has_lasted(reason: AlarmReason) -> None:
    patience = PATIENCE[reason]
    assert run([SIGNS[reason]] * (patience - 1))[1] == []
    state, new_alarms = run([SIGNS[reason]] * 10)
    assert reasons(new_alarms) == [reason], "the cause alone, not what follows from it"
    assert new_alarms[0].step == patience
    assert state.raised == tuple(new_alarms)


@pytest.mark.parametrize("reason", SIGNS)
def test_one_good_step_ends_the_episode_and_another_episode_is_reported_again(reason: AlarmReason) -> None:
    episode = [SIGNS[reason]] * PATIENCE[reason]
    assert run([*episode, WELL])[0] == AlarmState()
    assert reasons(run([*episode, WELL, *episode])[1]) == [reason, reason]
    interrupted = [*episode[:-1], WELL, *episode[:-1]]
    assert run(interrupted)[1] == []


def test_a_mismatch_that_is_not_a_number_is_reported_and_a_missing_one_is_not() -> None:
    assert reasons(run([replace(WELL, mismatch=math.nan)])[1]) == [AlarmReason.LOG_PROB_MISMATCH]
    assert run([replace(WELL, mismatch=None)])[1] == []


def test_groups_that_are_replaced_for_want_of_rewards_are_a_fault() -> None:
    assert reasons(run([replace(WELL, num_faults=0, num_rejected=4, num_given_up=0)])[1]) == [AlarmReason.REWARDS_FAULT]


def test_a_fault_of_rewards_counts_no_groups_that_episodes_lost() -> None:
    (alarm,) = run([replace(WELL, num_faults=0, num_rejected=7, num_given_up=3)])[1]
    assert alarm.reason is AlarmReason.REWARDS_FAULT
    assert "and 4 groups were replaced for it" in alarm.message


def test_groups_that_are_replaced_for_failed_episodes_are_a_fault_of_environments() -> None:
    given_up = replace(WELL, num_faults=0, num_rejected=4, num_given_up=4)
    assert reasons(run([given_up])[1]) == [AlarmReason.ENVIRONMENTS_FAULT]


STEPS = st.lists(st.sampled_from([WELL, *SIGNS.values()]), max_size=30)


@given(STEPS, st.integers(0, 30))
def test_a_checkpoint_between_any_two_steps_changes_nothing(steps: list[StepSignals], cut: int) -> None:
    before, new_alarms = run(steps[:cut])
    loaded = AlarmState.load(json.loads(json.dumps(before.export())))
    assert loaded == before
    after, more = run(steps[cut:], loaded)
    whole, all_alarms = run(steps)
    assert reasons(new_alarms + more) == reasons(all_alarms)
    assert (reasons(after.raised), after.lasting) == (reasons(whole.raised), whole.lasting)


@given(STEPS)
def test_what_is_raised_has_been_reported_and_has_its_sign_in_the_newest_steps(steps: list[StepSignals]) -> None:
    state, new_alarms = run(steps)
    assert set(reasons(state.raised)) <= set(reasons(new_alarms))
    assert len(set(reasons(state.raised))) == len(state.raised)
    for reason in reasons(state.raised):
        assert all(reasons(run([one] * PATIENCE[reason])[1]).count(reason) for one in steps[-PATIENCE[reason] :])


BEFORE = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0] * 8


def fallen(num_prompts: int) -> list[float]:
    """So many prompts are not answered any longer."""
    right = [place for place, reward in enumerate(BEFORE) if reward]
    return [0.0 if place in right[:num_prompts] else reward for place, reward in enumerate(BEFORE)]


def evaluations(*scores: Sequence[float]) -> list[list[AlarmReason]]:
    """What each evaluation raises."""
    state, new_alarms = AlarmState(), []
    for number, score in enumerate(scores):
        state, new = after_evaluation(state, BEFORE, score, number)
        new_alarms.append(reasons(new))
    return new_alarms


FELL = [AlarmReason.HELD_OUT_REWARD_FELL]


def test_a_fall_that_is_no_chance_is_reported_once() -> None:
    assert evaluations(BEFORE, fallen(12), fallen(12)) == [[], FELL, []]


def test_a_fall_that_may_be_chance_is_reported_when_it_lasts() -> None:
    """Six of 64 prompts: two and a half standard errors."""
    assert 1.64 < fall_in_standard_errors(BEFORE, fallen(6)) < 3
    assert evaluations(fallen(6), fallen(6)) == [[], FELL]
    assert evaluations(fallen(6), BEFORE, fallen(6)) == [[], [], []]
    assert fall_in_standard_errors(BEFORE, fallen(2)) < 1.64
    assert evaluations(fallen(2), fallen(2), fallen(2)) == [[], [], []]


def test_a_reward_that_recovers_ends_the_episode() -> None:
    assert evaluations(fallen(12), BEFORE, fallen(12)) == [FELL, [], FELL]


def test_a_fall_by_a_tenth_is_reported_at_the_second_evaluation_of_64_prompts() -> None:
    """From 0.67 to 0.58: nine answers lost and three won."""
    before = [1.0] * 43 + [0.0] * 21
    latest = [0.0] * 9 + [1.0] * 37 + [0.0] * 18
    assert 1.64 < fall_in_standard_errors(before, latest) < 2
    state, new_alarms = after_evaluation(AlarmState(), before, latest, 4)
    assert not new_alarms
    assert reasons(after_evaluation(state, before, latest, 8)[1]) == FELL


def test_a_prompt_whose_rewards_failed_once_is_compared_with_nothing() -> None:
    gone = [None if place % 2 else reward for place, reward in enumerate(BEFORE)]
    assert after_evaluation(AlarmState(), BEFORE, gone, 4) == (AlarmState(), ())
    state, new_alarms = after_evaluation(AlarmState(), gone, fallen(24), 4)
    assert reasons(new_alarms) == FELL
    found = [old for old in gone if old is not None]
    assert f"fell from {sum(found) / len(found):.3f} before" in new_alarms[0].message
    assert after_evaluation(state, gone[:-1], fallen(24), 8)[0] == AlarmState(), "of other prompts"
