"""The synchronous baseline step by step: everything is sampled, and everything is waited for."""

import pytest

from longshore.policy.round_plan import Acceptance
from longshore.policy.round_policy import NO_RULES, AdmissionRules, BatchShape
from longshore.policy.synchronous import Synchronous
from tests.unit.policy.tables import Did, Ended, Table, cursor

DAPO = AdmissionRules(acceptance=Acceptance.TRAINABLE)


def policy(num_prompts: int = 2, rules: AdmissionRules = NO_RULES) -> Synchronous:
    return Synchronous(BatchShape(num_prompts, num_responses=2), cursor(), rules)


def test_a_round_waits_for_every_response_of_every_prompt() -> None:
    table = Table(policy())
    assert table.row("start") == Did(launch="A0 A1 B0 B1")
    assert table.row("B1") == Did()
    assert table.row("A0 B0") == Did(accepted="B10", score="B10")
    assert table.row("A1") == Did(accepted="A01", score="A01", has_batch=True)
    assert table.end() == Ended(accepted="B10 A01")


def test_the_next_round_goes_on_in_the_data() -> None:
    rounds = policy()
    table = Table(rounds)
    table.rows("start", "A0 A1 B0 B1")
    table.end()
    assert table.row("start") == Did(launch="C0 C1 D0 D1")
    assert rounds.num_deferred == 0


def test_groups_are_accepted_as_soon_as_served_whatever_their_rewards() -> None:
    """A slow verifier decides nothing, and equal rewards are trained on with advantage 0."""
    table = Table(policy(num_prompts=1))
    table.row("start")
    assert table.row("A0 A1") == Did(accepted="A01", score="A01", has_batch=True)
    assert table.row("A=") == Did(has_batch=True)
    assert table.end() == Ended(accepted="A01")


def test_a_group_whose_rewards_failed_is_replaced_though_the_batch_was_complete() -> None:
    table = Table(policy())
    table.rows("start", "A0 A1 B0 B1")
    assert table.row("A!") == Did(launch="C0 C1")
    assert table.row("C0 C1") == Did(accepted="C01", score="C01", has_batch=True)
    assert table.end() == Ended(accepted="B01 C01")


def test_dynamic_sampling_asks_for_rewards_first_and_replaces_groups_without_spread() -> None:
    table = Table(policy(rules=DAPO))
    assert table.row("start") == Did(launch="A0 A1 B0 B1")
    assert table.row("A0 A1 B0 B1") == Did(score="A01 B01")
    assert table.row("B=") == Did(launch="C0 C1")
    assert table.row("C0 C1") == Did(score="C01")
    assert table.row("C~") == Did(accepted="C01")
    assert table.row("A~") == Did(accepted="A01", has_batch=True)
    assert table.end() == Ended(accepted="C01 A01", zero_variance="B")


def test_dynamic_sampling_replaces_a_group_whose_rewards_fail_before_its_batch_ends() -> None:
    table = Table(policy(num_prompts=1, rules=DAPO))
    table.rows("start", "A0 A1")
    assert table.row("A!") == Did(launch="B0 B1")
    table.row("B0 B1")
    assert table.row("B~") == Did(accepted="B01", has_batch=True)


def test_a_round_cannot_be_closed_before_its_batch_is_complete() -> None:
    table = Table(policy())
    table.rows("start", "A0 A1")
    with pytest.raises(AssertionError, match="the batch of the round is not complete"):
        table.end()
