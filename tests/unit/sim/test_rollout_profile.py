"""What a profile says to the parallelism planner."""

import pytest

from longshore.api.round_status import RoundKind
from longshore.policy.parallelism_planner import ParallelismPlanner
from longshore.sim.rollout_profile import rollout_profile
from tests.unit.sim.measured import profile, spec

SHORT, LONG, FULL = RoundKind.SHORT, RoundKind.LONG, RoundKind.FULL


def test_tail_batching_has_a_time_for_both_kinds_of_round_at_every_measured_size() -> None:
    found = rollout_profile(profile(1, 2, 4), spec(strategy="TailBatching"))
    assert found is not None
    assert found.round_s.keys() == {SHORT, LONG}
    assert all(times.keys() == {1, 2, 4} for times in found.round_s.values())
    assert all(seconds > 0 for times in found.round_s.values() for seconds in times.values())
    assert all(found.round_s[LONG][size] > found.round_s[SHORT][size] for size in (1, 2, 4))


def test_other_strategies_have_full_rounds() -> None:
    found = rollout_profile(profile(1, 2), spec(strategy="Synchronous"))
    assert found is not None
    assert found.round_s.keys() == {FULL}


def test_a_regroup_costs_what_was_measured() -> None:
    found = rollout_profile(profile(1, 2, regroup_s=12.5), spec())
    assert found is not None
    assert found.switch_s == 12.5


def test_preemptions_cost_more_where_they_happen_than_what_one_recomputation_is_estimated_to() -> None:
    roomy, crowded = (rollout_profile(profile(1, kv_capacity_tokens=tokens), spec()) for tokens in (10**7, 4_000))
    assert roomy is not None
    assert crowded is not None
    assert 0 < roomy.preemption_s < crowded.preemption_s
    assert roomy.round_s == crowded.round_s, "round times are those without preemptions"


def test_it_says_what_each_size_preempts() -> None:
    found = rollout_profile(profile(1, 2, kv_capacity_tokens=4_000), spec(strategy="Synchronous"))
    assert found is not None
    assert found.num_preemptions[FULL].keys() == {1, 2}
    assert found.num_preemptions[FULL][1] > 0
    roomy = rollout_profile(profile(1, 2, kv_capacity_tokens=10**7), spec(strategy="Synchronous"))
    assert roomy is not None
    assert roomy.num_preemptions == {FULL: {1: 0, 2: 0}}


def test_a_profile_without_the_jobs_own_size_predicts_nothing() -> None:
    assert rollout_profile(profile(2, 4), spec()) is None
    assert rollout_profile(profile(1, subject=None), spec()) is None


@pytest.mark.parametrize("strategy", ["TailBatching", "Synchronous"])
def test_the_planner_takes_it(strategy: str) -> None:
    found = rollout_profile(profile(1, 2, 4), spec(strategy=strategy))
    assert found is not None
    planner = ParallelismPlanner(dict.fromkeys(found.round_s, 1), [1, 2, 4], 4, found)
    kind = next(iter(found.round_s))
    for _ in range(4):
        planner.round_ended(kind, 100)
    assert planner.round_ended(kind, 100_000) is not None, "so many preemptions are worth a larger size"
