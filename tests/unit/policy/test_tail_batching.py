"""Tail batching step by step (RollPacker, section 3)."""

import pytest

from longshore.api.rollout import TailBatchingSettings
from longshore.api.round_status import RoundKind
from longshore.policy.draws import DrawCursor
from longshore.policy.round import ResponseFinished, ResponseId
from longshore.policy.round_plan import Acceptance
from longshore.policy.round_policy import NO_RULES, AdmissionRules, BatchShape
from longshore.policy.tail_batching import TailBatching
from tests.unit.policy.tables import Did, Ended, Table, cursor

DAPO = AdmissionRules(acceptance=Acceptance.TRAINABLE)


def policy(num_prompts: int, num_responses: int, eta: float = 1.25) -> TailBatching:
    settings = TailBatchingSettings(prompt_factor=eta, response_factor=eta)
    return TailBatching(BatchShape(num_prompts, num_responses), DrawCursor(100, seed=0), settings)


def finish_in_order(rounds: TailBatching, launched: tuple[ResponseId, ...]) -> None:
    for step, response in enumerate(launched):
        if rounds.responses_finished([ResponseFinished(response, step)]).has_batch:
            return


def test_completions_that_tie_are_decided_by_engine_step_and_draw() -> None:
    outcomes = []
    for reverse in (False, True):
        rounds = policy(num_prompts=1, num_responses=2, eta=2.0)
        launched = rounds.start_round().decision.launch
        events = [ResponseFinished(response, 7) for response in launched]
        rounds.responses_finished(events[::-1] if reverse else events)
        outcomes.append(rounds.end_round())
    assert outcomes[0] == outcomes[1]


def test_events_that_come_after_the_cut_off_change_nothing() -> None:
    rounds = policy(num_prompts=1, num_responses=2, eta=2.0)
    launched = rounds.start_round().decision.launch
    finish_in_order(rounds, launched)
    late = rounds.responses_finished([ResponseFinished(launched[-1], 99)])
    assert (late.launch, late.abort, late.accepted) == ((), (), ())


def test_eta_times_a_count_is_not_rounded_up_by_a_rounding_error() -> None:
    start = policy(num_prompts=10, num_responses=10, eta=1.1).start_round()
    assert len(start.decision.launch) == 11 * 11


def small(rules: AdmissionRules = NO_RULES, *, eta: float = 1.5, keeps_tokens: bool = False) -> TailBatching:
    """P0 = R0 = 2: a short round starts three draws with three responses each."""
    settings = TailBatchingSettings(prompt_factor=eta, response_factor=eta)
    return TailBatching(BatchShape(2, 2), cursor(), settings, rules, keeps_tokens=keeps_tokens)


def test_a_period_as_a_table() -> None:
    table = Table(small())
    assert table.row("start") == Did(launch="A0 A1 A2 B0 B1 B2 C0 C1 C2")
    assert table.row("A1") == Did()
    assert table.row("C2 A2") == Did(abort="A0", accepted="A12", score="A12")
    assert table.row("C0") == Did(abort="C1 B0 B1 B2", accepted="C20", score="C20", has_batch=True)
    assert table.end() == Ended(accepted="A12 C20", deferred="B", kind=RoundKind.SHORT)
    table.rows("start", "D0 D1", "E0 E1")
    assert table.end() == Ended(accepted="D01 E01", deferred="F", kind=RoundKind.SHORT)
    assert table.row("start") == Did(launch="B0 B1 F0 F1"), "long: the deferred draws, oldest first, from scratch"
    assert table.row("F0 F1") == Did(accepted="F01", score="F01")
    assert table.row("B0 B1") == Did(accepted="B01", score="B01", has_batch=True)
    assert table.end() == Ended(accepted="F01 B01", kind=RoundKind.LONG)
    assert table.row("start") == Did(launch="G0 G1 G2 H0 H1 H2 I0 I1 I2"), "short again"


def test_dynamic_sampling_ends_the_round_with_enough_groups_that_have_a_gradient() -> None:
    """RollPacker, section 7: issue goes on; termination follows DAPO; zero variance never enters the queue."""
    rounds = small(DAPO)
    table = Table(rounds)
    assert table.row("start") == Did(launch="A0 A1 A2 B0 B1 B2 C0 C1 C2")
    assert table.row("A0 A1") == Did(abort="A2", score="A01")
    assert table.row("A=") == Did(launch="D0 D1"), "a replacement has R0 responses: it need not race"
    assert table.row("B0 B1 C0 C1") == Did(abort="B2 C2", score="B01 C01")
    assert table.row("C~") == Did(accepted="C01")
    assert table.row("B~") == Did(abort="D0 D1", accepted="B01", has_batch=True)
    assert table.end() == Ended(accepted="C01 B01", deferred="D", zero_variance="A", kind=RoundKind.SHORT)
    assert rounds.num_deferred == 1


def test_with_dynamic_sampling_groups_with_late_rewards_wait_like_unfinished_ones() -> None:
    table = Table(small(DAPO))
    table.rows("start", "A0 A1 B0 B1 C0 C1", "B~", "A~")
    assert table.row("C=") == Did(has_batch=True), "after the cut-off nothing is decided any more"
    assert table.end() == Ended(accepted="B01 A01", deferred="C", kind=RoundKind.SHORT)


def test_with_dynamic_sampling_and_a_cap_requests_are_issued_as_others_end() -> None:
    """Section 7: a maximum of active requests for each engine, with new ones issued continuously."""
    table = Table(small(AdmissionRules(acceptance=Acceptance.TRAINABLE, max_active_per_engine=3)))
    assert table.row("start") == Did(launch="A0 A1 A2")
    assert table.row("A0 A1") == Did(launch="B0 B1 B2", abort="A2", score="A01")
    assert table.row("A=") == Did(), "D takes A's place among the candidates, and waits behind C"
    assert table.row("B1 B2") == Did(launch="C0 C1 C2", abort="B0", score="B12")
    assert table.row("C0 C1") == Did(launch="D0 D1", abort="C2", score="C01")
    table.row("B~")
    assert table.row("C~") == Did(abort="D0 D1", accepted="C01", has_batch=True)
    assert table.end() == Ended(accepted="B12 C01", deferred="D", zero_variance="A", kind=RoundKind.SHORT)


def test_a_long_round_that_loses_a_group_to_zero_variance_takes_a_fresh_one() -> None:
    table = Table(small(DAPO))
    for rest in ("A0 A1 B0 B1", "D0 D1 E0 E1"):
        table.rows("start", rest)
        table.rows(f"{rest[0]}~", f"{rest[6]}~")
        table.end()
    assert table.row("start") == Did(launch="C0 C1 F0 F1")
    table.row("C0 C1 F0 F1")
    assert table.row("C=") == Did(launch="G0 G1")
    table.rows("F~", "G0 G1")
    assert table.row("G~") == Did(accepted="G01", has_batch=True)
    assert table.end() == Ended(accepted="F01 G01", zero_variance="C", kind=RoundKind.LONG)


def test_relaxed_the_long_round_continues_what_short_rounds_began() -> None:
    """Section 7: R0 responses of the queued draw, those that have finished among them."""
    table = Table(small(keeps_tokens=True))
    table.rows("start", "B2", "A0 A1 C0 C1")
    assert table.end() == Ended(accepted="A01 C01", deferred="B", kept="B2 B0 B1", kind=RoundKind.SHORT)
    table.rows("start", "D0 D1 E0 E1 F1")
    assert table.end() == Ended(accepted="D01 E01", deferred="F", kept="B2 B0 B1 F1 F0 F2", kind=RoundKind.SHORT), (
        "tokens are kept as long as the draw waits"
    )
    assert table.row("start") == Did(launch="B0 F0"), "B2 and F1 are there; R0 of a group need no third"
    assert table.row("F0 B0") == Did(accepted="B20 F10", score="B20 F10", has_batch=True)
    assert table.end() == Ended(accepted="B20 F10", kind=RoundKind.LONG)


def test_kept_tokens_are_refused_by_a_job_that_has_become_strict() -> None:
    relaxed = small(keeps_tokens=True)
    table = Table(relaxed)
    table.rows("start", "A0 A1 C0 C1")
    table.end()
    with pytest.raises(ValueError, match=r"rollout.leftovers: groups still wait with tokens of older weights"):
        small().load_state(relaxed.export_state())


def test_the_last_rounds_are_long_ones_of_what_waits() -> None:
    rounds = small()
    table = Table(rounds)
    table.rows("start", "A0 A1 C0 C1")
    table.end()
    assert table.row("drain") == Did(launch="B0 B1")
    assert table.row("B0 B1").has_batch
    assert table.end() == Ended(accepted="B01", kind=RoundKind.LONG)
    assert rounds.num_deferred == 0


@pytest.mark.parametrize(("eta", "num_short"), [(1.25, 4), (1.5, 2), (2.0, 1)])
def test_a_long_round_follows_every_one_over_eta_minus_one_short_ones(eta: float, num_short: int) -> None:
    rounds = policy(num_prompts=4, num_responses=2, eta=eta)
    kinds = []
    for _ in range(2 * (num_short + 1)):
        start = rounds.start_round()
        kinds.append(start.kind)
        finish_in_order(rounds, start.decision.launch)
        rounds.end_round()
    assert kinds == ([RoundKind.SHORT] * num_short + [RoundKind.LONG]) * 2
