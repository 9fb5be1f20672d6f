"""Gates before any strategy: groups in service, requests per engine, and what the engines bear; they combine."""

import json

import pytest

from longshore.api.rollout import AdmissionSettings, EngineSettings, Rollout, Strategy, TailBatchingSettings
from longshore.api.round_status import RoundKind
from longshore.policy.engine_load import ConcurrencyLimit, EngineLoad
from longshore.policy.round_policy import AdmissionRules, BatchShape, RoundPolicy
from longshore.policy.strategies import round_policy
from longshore.policy.synchronous import Synchronous
from longshore.policy.tail_batching import TailBatching
from tests.unit.policy.tables import Did, Ended, Table, cursor, did

ROOMY = EngineLoad(num_running=2, num_waiting=0, kv_usage=0.1, num_preemptions=0, at_s=0.0)
"""All that the engine was given runs, and its cache is nearly empty: the limit grows by a step."""
FULL = EngineLoad(num_running=3, num_waiting=0, kv_usage=0.99, num_preemptions=0, at_s=0.0)


def synchronous(rules: AdmissionRules, num_prompts: int = 3) -> Synchronous:
    return Synchronous(BatchShape(num_prompts, num_responses=2), cursor(), rules)


def adaptive() -> AdmissionRules:
    """Starts with two requests per engine, a quarter of what it can run, and grows one by one up to 31."""
    return AdmissionRules(load_limit=ConcurrencyLimit(8))


def tail_batching(rules: AdmissionRules) -> TailBatching:
    """P0 = R0 = 2, eta = 1.5: a short round starts three draws with three responses each."""
    settings = TailBatchingSettings(prompt_factor=1.5, response_factor=1.5)
    return TailBatching(BatchShape(2, 2), cursor(), settings, rules)


def test_as_many_requests_run_as_the_engines_may_be_given() -> None:
    table = Table(synchronous(AdmissionRules(max_active_per_engine=3)))
    assert table.row("start") == Did(launch="A0 A1 B0")
    assert table.row("A0") == Did(launch="B1")
    assert table.row("A1 B0") == Did(launch="C0 C1", accepted="A01", score="A01")


def test_the_limit_is_per_engine_and_follows_their_number() -> None:
    rounds = synchronous(AdmissionRules(max_active_per_engine=2))
    table = Table(rounds, engines=(0, 1))
    assert table.row("start") == Did(launch="A0 A1 B0 B1")
    assert did(rounds.engines_changed([1])) == Did(), "what runs goes on"
    assert table.row("A0 A1 B0") == Did(launch="C0", accepted="A01", score="A01")
    assert did(rounds.engines_changed([1, 2])) == Did(launch="C1")


def test_without_any_engine_the_round_waits_with_what_one_would_be_given() -> None:
    rounds = synchronous(AdmissionRules(max_active_per_engine=2))
    table = Table(rounds)
    table.row("start")
    assert did(rounds.engines_changed([])) == Did()
    assert did(rounds.engines_changed([4])) == Did()
    assert table.row("A0 A1") == Did(launch="B0 B1", accepted="A01", score="A01")


def test_a_request_passes_when_each_gate_lets_it() -> None:
    table = Table(synchronous(AdmissionRules(frontier_width=2, max_active_per_engine=3)))
    assert table.row("start") == Did(launch="A0 A1 B0"), "the limit holds B1"
    assert table.row("A0") == Did(launch="B1"), "the frontier holds C, although there is room for two requests"
    assert table.row("B0 B1") == Did(launch="C0 C1", accepted="B01", score="B01")


def test_requests_follow_what_the_engine_bears() -> None:
    rounds = synchronous(adaptive())
    table = Table(rounds)
    assert table.row("start") == Did(launch="A0 A1")
    assert did(rounds.engine_load(0, ROOMY)) == Did(launch="B0")
    assert did(rounds.engine_load(0, FULL)) == Did(), "the limit falls to two: nothing is aborted, nothing launched"
    assert table.row("A0") == Did()
    assert table.row("A1") == Did(launch="B1", accepted="A01", score="A01")


def test_reports_of_one_engine_leave_the_limit_of_another_alone() -> None:
    rounds = synchronous(adaptive())
    table = Table(rounds, engines=(0, 1))
    assert table.row("start") == Did(launch="A0 A1 B0 B1")
    assert did(rounds.engine_load(1, ROOMY)) == Did(launch="C0")
    assert did(rounds.engine_load(7, ROOMY)) == Did(), "not an engine of the round"


def test_without_adaptive_admission_reports_change_nothing() -> None:
    rounds = synchronous(AdmissionRules(max_active_per_engine=2))
    Table(rounds).row("start")
    assert did(rounds.engine_load(0, ROOMY)) == Did()


def test_what_an_engine_bears_is_kept_between_rounds_and_forgotten_with_the_engine() -> None:
    rounds = synchronous(adaptive(), num_prompts=1)
    table = Table(rounds)
    table.row("start")
    rounds.engine_load(0, ROOMY)
    assert rounds._gates.max_running == 3
    table.row("A0 A1")
    table.end()
    table.row("start")
    assert rounds._gates.max_running == 3
    rounds.engines_changed([])
    rounds.engines_changed([0])
    assert rounds._gates.max_running == 2


def test_what_the_engines_bear_survives_a_restart() -> None:
    rounds, restored = synchronous(adaptive()), synchronous(adaptive())
    table = Table(rounds)
    table.row("start")
    rounds.engine_load(0, ROOMY)
    table.rows("A0 A1", "B0 B1", "C0 C1")
    table.end()
    state = json.loads(json.dumps(rounds.export_state()))
    restored.load_state(state)
    assert restored.engine_limit(0) == rounds.engine_limit(0) == 3
    narrower = synchronous(AdmissionRules(load_limit=ConcurrencyLimit(max_num_seqs=2)))
    narrower.load_state(state)
    assert narrower.engine_limit(0) == 2


@pytest.mark.parametrize("per_engine", [1, 2, 9])
def test_the_smaller_of_both_limits_counts(per_engine: int) -> None:
    rules = AdmissionRules(max_active_per_engine=per_engine, load_limit=ConcurrencyLimit(max_num_seqs=8))
    launched = Table(synchronous(rules)).row("start").launch
    assert len(launched.split()) == min(per_engine, 2)


def test_tail_batching_with_a_frontier_races_only_within_it() -> None:
    """The gate decides who starts, not who is deferred: C never ran, and waits for the long round like any other."""
    table = Table(tail_batching(AdmissionRules(frontier_width=2)))
    assert table.row("start") == Did(launch="A0 A1 A2 B0 B1 B2")
    assert table.row("A2 A0") == Did(launch="C0 C1 C2", abort="A1", accepted="A02", score="A02")
    assert table.row("B0 B1") == Did(abort="B2 C0 C1 C2", accepted="B01", score="B01", has_batch=True)
    assert table.end().deferred == "C"


def test_tail_batching_with_a_limit_starts_responses_as_others_end() -> None:
    table = Table(tail_batching(AdmissionRules(max_active_per_engine=4)))
    assert table.row("start") == Did(launch="A0 A1 A2 B0")
    assert table.row("A0 A1") == Did(launch="B1 B2 C0", abort="A2", accepted="A01", score="A01")
    assert table.row("B0") == Did(launch="C1")
    assert table.row("C0 C1") == Did(abort="B1 B2", accepted="C01", score="C01", has_batch=True), "C2 never started"
    assert table.end() == Ended(accepted="A01 C01", deferred="B", kind=RoundKind.SHORT)


def test_fields_of_a_job_reach_the_gates() -> None:
    def rounds(**fields: object) -> RoundPolicy:
        admission = AdmissionSettings.model_validate(fields)
        rollout = Rollout(strategy=Strategy.SYNCHRONOUS, admission=admission, engine=EngineSettings(max_num_seqs=8))
        return round_policy(rollout, BatchShape(3, 2), cursor())

    assert Table(rounds()).row("start").launch == "A0 A1 B0 B1 C0 C1"
    assert Table(rounds(frontier_width=1)).row("start").launch == "A0 A1"
    assert Table(rounds(max_active_per_engine=3)).row("start").launch == "A0 A1 B0"
    assert Table(rounds(adaptive=True)).row("start").launch == "A0 A1"
