"""What a profile says to the parallelism planner."""

from longshore.api.round_status import RoundKind
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


def test_a_regroup_costs_what_was_measured() -> None:
    found = rollout_profile(profile(1, 2, regroup_s=12.5), spec())
    assert found is not None
    assert found.switch_s == 12.5


def test_preemptions_cost_more_where_they_happen_than_one_recomputation_by_estimate() -> None:
    roomy, crowded = (rollout_profile(profile(1, kv_capacity_tokens=tokens), spec()) for tokens in (10**7, 4_000))
    assert roomy is not None
    assert crowded is not None
    assert 0 < roomy.preemption_s < crowded.preemption_s
    assert roomy.round_s == crowded.round_s, "round times are those without preemptions"


def test_a_profile_without_the_jobs_own_size_predicts_nothing() -> None:
    assert rollout_profile(profile(2, 4), spec()) is None
    assert rollout_profile(profile(1, subject=None), spec()) is None
