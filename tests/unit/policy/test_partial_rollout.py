"""Partial rollout step by step (APRIL, section 2.2): N' groups start, N are waited for, the rest goes on later."""

import pytest

from longshore.api.rollout import PartialRolloutSettings
from longshore.policy.partial_rollout import PartialRollout
from longshore.policy.round_policy import NO_RULES, AdmissionRules, BatchShape
from tests.unit.policy.tables import Did, Ended, Table, cursor


def policy(
    num_prompts: int = 2,
    group_factor: float = 2.0,
    max_policy_versions: int = 5,
    rules: AdmissionRules = NO_RULES,
    num_responses: int = 2,
) -> PartialRollout:
    settings = PartialRolloutSettings(group_factor=group_factor, max_policy_versions=max_policy_versions)
    return PartialRollout(BatchShape(num_prompts, num_responses), cursor(), settings, rules)


def test_twice_as_many_groups_start_and_the_round_stops_at_n() -> None:
    table = Table(policy())
    assert table.row("start") == Did(launch="A0 A1 B0 B1 C0 C1 D0 D1")
    assert table.row("C0 C1 A0") == Did(accepted="C01", score="C01")
    assert table.row("D1 D0") == Did(accepted="D01", score="D01", abort="A1 B0 B1", has_batch=True)
    assert table.end() == Ended(accepted="C01 D01", deferred="A B", kept="A0 A1 B0 B1")


def test_what_was_left_over_goes_first_and_only_what_had_not_finished_runs_again() -> None:
    table = Table(policy())
    table.rows("start", "C0 C1 A0", "D0 D1")
    table.end()
    assert table.row("start") == Did(launch="A1 B0 B1 E0 E1 F0 F1")
    assert table.row("A1") == Did(accepted="A01", score="A01")


def test_a_finished_response_waits_until_its_whole_group_is_served() -> None:
    """A group is trained with responses of several rounds, in the order in which they finished."""
    table = Table(policy(num_prompts=1))
    table.rows("start", "A1", "B0 B1")
    assert table.end() == Ended(accepted="B01", deferred="A", kept="A1 A0")
    assert table.row("start") == Did(launch="A0 C0 C1")
    assert table.row("A0") == Did(accepted="A10", score="A10", abort="C0 C1", has_batch=True)


def test_a_response_that_ends_while_being_aborted_is_kept_and_not_sampled_again() -> None:
    table = Table(policy(num_prompts=1))
    table.rows("start", "B0 B1")
    assert table.row("A0 A1") == Did(has_batch=True)
    assert table.end() == Ended(accepted="B01", deferred="A", kept="A0 A1")
    assert table.row("start") == Did(accepted="A01", score="A01", abort="", has_batch=True)


def test_groups_are_waited_for_before_their_responses_have_too_many_versions() -> None:
    """V = 2: what one round left over must be in the batch of the next; who was quicker opens the one after."""
    table = Table(policy(max_policy_versions=2))
    table.rows("start", "C0 C1", "A0", "D0 D1")
    assert table.end() == Ended(accepted="C01 D01", deferred="A B", kept="A0 A1 B0 B1")
    assert table.row("start") == Did(launch="A1 B0 B1 E0 E1 F0 F1")
    assert table.row("E0 E1 F0 F1") == Did(), "they have no place: A and B are due"
    assert table.row("B0 B1") == Did(accepted="B01", score="B01")
    assert table.row("A1") == Did(accepted="A01", score="A01", has_batch=True)
    assert table.end() == Ended(accepted="B01 A01", deferred="E F", kept="E0 E1 F0 F1")
    assert table.row("start") == Did(accepted="E01 F01", score="E01 F01", has_batch=True)
    assert table.end() == Ended(accepted="E01 F01", deferred="G H", kept="G0 G1 H0 H1")


def test_only_as_many_groups_are_due_as_must_be() -> None:
    """V = 3, N = 2: four groups of which two rounds may still leave two over each; the third round has no choice."""
    table = Table(policy(group_factor=3.0, max_policy_versions=3))
    assert table.row("start") == Did(launch="A0 A1 B0 B1 C0 C1 D0 D1 E0 E1 F0 F1")
    table.row("E0 E1 F0 F1")
    assert table.end().deferred == "A B C D"
    table.row("start")  # C and D could still wait for round 3, if A and B did not: two of the four are due.
    assert table.row("G0 G1 H0 H1") == Did()
    assert table.row("A0 A1 C0 C1") == Did(accepted="A01", score="A01")
    assert table.row("B0 B1") == Did(accepted="B01", score="B01", abort="D0 D1", has_batch=True), (
        "C was quick, but its place is A's and B's"
    )


def test_one_version_is_the_synchronous_round() -> None:
    table = Table(policy(group_factor=1.0, max_policy_versions=1))
    assert table.row("start") == Did(launch="A0 A1 B0 B1")
    table.row("A0 A1 B0 B1")
    assert table.end() == Ended(accepted="A01 B01")


def test_a_group_that_fails_is_replaced_so_that_as_many_as_planned_stay_in_play() -> None:
    table = Table(policy(num_prompts=1))
    table.rows("start", "B0 B1")
    assert table.row("B!") == Did(launch="C0 C1"), "A was cut off and waits; a fresh draw takes the place of B"
    table.row("C0 C1")
    assert table.end() == Ended(accepted="C01", deferred="A", kept="A0 A1")


def test_requests_that_the_gates_held_back_are_left_over_without_tokens() -> None:
    table = Table(policy(num_prompts=1, rules=AdmissionRules(max_active_per_engine=2)))
    assert table.row("start") == Did(launch="A0 A1")
    assert table.row("A0 A1") == Did(accepted="A01", score="A01", has_batch=True)
    assert table.end() == Ended(accepted="A01", deferred="B", kept="B0 B1")
    assert table.row("start") == Did(launch="B0 B1")


def test_the_last_rounds_train_what_waits_and_start_nothing() -> None:
    rounds = policy(num_prompts=2, group_factor=2.5)
    table = Table(rounds)
    table.rows("start", "D0 D1 E0 E1")
    assert table.end().deferred == "A B C"
    assert table.row("drain") == Did(launch="A0 A1 B0 B1 C0 C1")
    table.row("B0 B1 C0 C1")
    table.end()
    assert table.row("drain") == Did(launch="A0 A1")
    table.row("A0 A1")
    assert table.end() == Ended(accepted="A01")
    assert rounds.num_deferred == 0


def test_a_smaller_limit_on_versions_is_refused_while_older_groups_wait() -> None:
    rounds = policy(max_policy_versions=5)
    table = Table(rounds)
    table.rows("start", "C0 C1 D0 D1")
    table.end()
    table.rows("start", "E0 E1 F0 F1")
    table.end()
    with pytest.raises(ValueError, match=r"rollout.partialRollout.maxPolicyVersions: 2 is too few"):
        policy(max_policy_versions=2).load_state(rounds.export_state())


def test_larger_groups_are_refused_while_smaller_ones_are_half_done() -> None:
    rounds = policy()
    table = Table(rounds)
    table.rows("start", "C0 C1 D0 D1")
    table.end()
    with pytest.raises(ValueError, match=r"algorithm.responsesPerPrompt: groups that were started with fewer"):
        policy(num_responses=3).load_state(rounds.export_state())
