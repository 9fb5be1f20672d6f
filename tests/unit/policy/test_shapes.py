"""Which kinds of round a strategy plans, and which pods its trainer replicas span."""

import random
from typing import Any

import pytest

from longshore.api.pods import Workers
from longshore.api.rljob import RLJob
from longshore.api.rollout import (
    OnPolicy,
    ReorderRolloutSettings,
    Rollout,
    Strategy,
    TailBatchingSettings,
)
from longshore.api.round_status import RoundKind
from longshore.policy.round_policy import BatchShape
from longshore.policy.shapes import replica_pods, replica_slots
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


def spec(trainer: dict[str, Any], **more: Any) -> Any:
    fields = {
        "model": {"builtin": "Tiny"},
        "data": {"builtin": "Counting"},
        "algorithm": {"steps": 3, "promptsPerStep": 4, "responsesPerPrompt": 2, "maxResponseTokens": 64},
        "storage": {"create": {"size": "1Gi"}},
        "workers": {"replicas": 3, "gpusPerPod": 4},
        "trainer": trainer,
    }
    return RLJob.model_validate({"metadata": {"name": "demo"}, "spec": fields | more}).spec


@pytest.mark.parametrize("trainer", [{"backend": "Megatron", "tensorParallelSize": 2}, {"fsdpSize": 2}])
def test_every_replica_lies_in_one_pod(trainer: dict[str, Any]) -> None:
    assert replica_pods(spec(trainer)) == tuple(frozenset({pod}) for pod in (0, 0, 1, 1, 2, 2))


def test_a_given_number_of_replicas_is_spread_over_the_pods() -> None:
    assert replica_pods(spec({"dataParallelSize": 2})) == (frozenset({0}), frozenset({1}))
    assert replica_slots(Workers(replicas=2, gpus_per_pod=4), 3) == [(0, 0), (0, 1), (1, 0)]


def test_trainers_apart_lie_in_their_own_pods() -> None:
    apart = spec({}, placement="Disaggregated", trainerWorkers={"replicas": 1, "gpusPerPod": 2})
    assert replica_pods(apart) == (frozenset({0}), frozenset({0}))
