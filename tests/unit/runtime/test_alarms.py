"""From a finished step, or an evaluation, to the alarms that users see."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from longshore.api.reasons import AlarmReason
from longshore.api.rollout import Strategy
from longshore.policy.training_alarms import AlarmLimits, RaisedAlarm
from longshore_runtime.backends.engine_protocol import FinishReason
from longshore_runtime.backends.sums import CriticSums, GradientSums
from longshore_runtime.backends.trainer_protocol import Sample, TrainResult, UpdateReport
from longshore_runtime.checkpoints.run_state import HeldOutScore, RunState
from longshore_runtime.rollout.batch import RoundResult, ScoredResponse
from longshore_runtime.telemetry.alarms import Alarms
from longshore_runtime.trainer.updates import StepTraining
from longshore_runtime.trajectories.trajectory import Trajectory
from tests.unit.runtime.scripted import ScriptedEngines, build, runner

LIMITS = AlarmLimits(max_mismatch=0.1, max_response_tokens=64)


class Reports:
    """Notices, and the alarms that last."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.lasting: Sequence[RaisedAlarm] = ()

    def notice(self, reason: str, message: str) -> None:
        assert message
        self.reasons.append(reason)

    def alarms(self, raised: Sequence[RaisedAlarm]) -> None:
        self.lasting = raised


def trained(result: RoundResult, *, grad_norm: float = 0.3, mismatch: float = 0.0) -> StepTraining:
    """An update with every response, whose rewards differ from one another."""
    responses = [one for group in result.groups for one in group.responses]
    samples = tuple(
        Sample(
            one.response.draw,
            one.response.index,
            (1,),
            Trajectory.sampled(0, [2], [0.0]),
            advantage=1.0,
            reward=one.reward,
        )
        for one in responses
    )
    sums = GradientSums(num_compared_tokens=10, mismatch=10 * mismatch)
    return StepTraining((TrainResult(sums, UpdateReport(grad_norm, 1e-3, 1), 1.0),), (samples,), 0.0)


def with_critic(step: StepTraining) -> StepTraining:
    """The same step with a critic, whose values are half of the returns."""
    returns = np.linspace(-1.0, 1.0, len(step.samples), dtype=np.float32).reshape(-1, 1)
    pairs = zip(step.samples, returns, strict=True)
    samples = tuple(replace(one, values=wanted / 2, returns=wanted) for one, wanted in pairs)
    first, *others = step.updates
    sums = replace(first.sums, critic=CriticSums(num_tokens=4, loss=2.0, clipped=1.0))
    update = replace(first.update, critic=UpdateReport(0.7, 1e-5, 1))
    return replace(step, updates=(replace(first, sums=sums, update=update), *others), batches=(samples,), values_s=1.0)


def with_responses(result: RoundResult, change: Callable[[ScoredResponse], ScoredResponse]) -> RoundResult:
    """The same round, and every response another one."""
    groups = (replace(group, responses=tuple(map(change, group.responses))) for group in result.groups)
    return replace(result, groups=tuple(groups))


def cut(response: ScoredResponse) -> ScoredResponse:
    return replace(response, completion=replace(response.completion, finish_reason=FinishReason.LENGTH))


def timed_out(response: ScoredResponse) -> ScoredResponse:
    return replace(response, timed_out=True, reward=0.0)


def with_faults(result: RoundResult) -> RoundResult:
    """Scoring failed more often than there are responses."""
    return replace(result, rewards=replace(result.rewards, num_faults=100))


@pytest.fixture
def result() -> RoundResult:
    """A round in which all goes well."""
    whole = runner(ScriptedEngines(), build(Strategy.SYNCHRONOUS)).run(draining=False)
    return with_responses(whole, lambda response: replace(response, reward=1.0))


SIGNS: dict[AlarmReason, Callable[[RoundResult], tuple[RoundResult, StepTraining]]] = {
    AlarmReason.RESPONSES_ALL_CUT: lambda well: (with_responses(well, cut), trained(well)),
    AlarmReason.REWARDS_TIME_OUT: lambda well: (
        with_responses(well, timed_out),
        trained(with_responses(well, timed_out)),
    ),
    AlarmReason.REWARDS_FAULT: lambda well: (with_faults(well), trained(well)),
    AlarmReason.ENVIRONMENTS_FAULT: lambda well: (replace(well, num_given_up=4), trained(well)),
    AlarmReason.GRADIENT_ZERO: lambda well: (well, trained(well, grad_norm=0.0)),
    AlarmReason.LOG_PROB_MISMATCH: lambda well: (well, trained(well, mismatch=3.1)),
}


def test_a_step_that_goes_well_raises_nothing(result: RoundResult) -> None:
    reports = Reports()
    alarms = Alarms(LIMITS, reports)
    for step in range(1, 10):
        alarms.step(step, result, trained(result))
    assert (reports.reasons, tuple(reports.lasting)) == ([], ())


@pytest.mark.parametrize("reason", SIGNS)
def test_what_a_step_shows_raises_the_alarm_of_its_cause_once(reason: AlarmReason, result: RoundResult) -> None:
    reports = Reports()
    alarms = Alarms(LIMITS, reports)
    for step in range(1, 10):
        alarms.step(step, *SIGNS[reason](result))
    assert reports.reasons == [reason.value]
    assert [alarm.reason for alarm in reports.lasting] == [reason]


def test_held_out_rewards_below_their_start_raise_an_alarm_until_they_are_back() -> None:
    reports = Reports()
    alarms = Alarms(LIMITS, reports)
    before = HeldOutScore(0.6, 0.5, tuple([0.6, 0.7, 0.5, 0.6] * 8))
    fallen = HeldOutScore(0.1, 0.1, tuple([0.1, 0.2, 0.0, 0.1] * 8))
    for step, latest in ((5, before), (10, fallen), (15, fallen), (20, before)):
        alarms.evaluated(RunState(step=step, held_out_before=before, held_out_latest=latest))
        assert bool(reports.lasting) is (latest is fallen)
    assert reports.reasons == [AlarmReason.HELD_OUT_REWARD_FELL.value]
