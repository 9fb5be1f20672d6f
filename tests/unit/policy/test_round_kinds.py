"""Which kinds of round a strategy plans."""

import random

import pytest

from longshore.api.rollout import (
    OnPolicy,
    ReorderRolloutSettings,
    Rollout,
    Strategy,
    TailBatchingSettings,
)
from longshore.api.round_status import RoundKind
from longshore.policy.round_policy import BatchShape
from longshore.policy.strategies import round_kinds, usual_period
from tests.unit.policy.rounds import FakeRollout, Job


@pytest.mark.parametrize("strategy", Strategy)
def test_the_kinds_of_a_strategy_are_those_that_its_rounds_have(strategy: Strategy) -> None:
    job = Job(Rollout(strategy=strategy, on_policy=OnPolicy.RELAXED), BatchShape(4, 2))
    policy = job.policy()
    fake = FakeRollout(policy, job, random.Random(0))
    kinds = {fake.round().kind for _ in range(40)}
    assert kinds == set(round_kinds(strategy))


@pytest.mark.parametrize("factor", [1.0, 1.1, 1.2, 1.5, 2.0, 4.0])
@pytest.mark.parametrize("strategy", [Strategy.TAIL_BATCHING, Strategy.AUTO])
def test_the_usual_period_of_tail_batching_is_that_of_its_rounds(strategy: Strategy, factor: float) -> None:
    rollout = Rollout(strategy=strategy, tail_batching=TailBatchingSettings(prompt_factor=factor))
    shape = BatchShape(num_prompts=10, num_responses=2)
    fake = FakeRollout(Job(rollout, shape).policy(), Job(rollout, shape), random.Random(0))
    usual = usual_period(rollout, shape.num_prompts)
    assert [fake.round().kind for _ in 3 * usual] == [*3 * usual]


def test_reorder_rollout_may_postpone_in_all_rounds_but_the_last_of_its_usual_period() -> None:
    rollout = Rollout(strategy=Strategy.REORDER_ROLLOUT, reorder_rollout=ReorderRolloutSettings(max_postponements=3))
    assert usual_period(rollout, num_prompts=10) == (*[RoundKind.FULL] * 3, RoundKind.LONG)
    assert usual_period(Rollout(strategy=Strategy.REORDER_ROLLOUT), 10) == (*[RoundKind.FULL] * 4, RoundKind.LONG)
    assert usual_period(Rollout(strategy=Strategy.GROUP_PIPELINE), 10) == (RoundKind.FULL,)
