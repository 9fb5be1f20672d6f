"""Lengths of recorded rounds: whole responses only, each draw by the round that consumed it."""

from longshore.record.build import round_record
from longshore.record.lengths import recorded_lengths
from longshore.record.model import RecordOutcome, ResponseRow, RoundRecord
from tests.unit.record.facts import TAIL_BATCHING, played

RECORD = round_record(played(TAIL_BATCHING, 3)[0].facts)


def record(step: int, *rows: ResponseRow) -> RoundRecord:
    return RECORD.model_copy(update={"step": step, "responses": rows})


def row(
    response: str, tokens: int, finish: str = "stop", outcome: RecordOutcome = RecordOutcome.ACCEPTED
) -> ResponseRow:
    return ResponseRow(
        response=response, prompt=0, tokens=tokens, finish=finish, outcome=outcome, reward=None, engine_s=0.0  # type: ignore[arg-type]
    )  # fmt: skip


def test_a_postponed_draw_counts_once_with_the_round_that_sampled_it_to_the_end() -> None:
    first = record(
        1,
        row("0-0-0", 5),
        row("0-0-1", 7, "length"),
        row("0-1-0", 6, outcome=RecordOutcome.DEFERRED),
        row("0-1-1", 9, "abort", RecordOutcome.DEFERRED),
    )
    second = record(2, row("0-1-0", 6), row("0-1-1", 40))
    found = recorded_lengths([first, second])
    assert found.groups == ((5, 7), (6, 40))
    assert (found.num_cut, found.num_started, found.num_rounds) == (0, 6, 2)


def test_responses_that_lost_a_race_are_counted_since_nobody_knows_their_length() -> None:
    found = recorded_lengths([record(1, row("0-0-0", 5), row("0-0-1", 4, "abort", RecordOutcome.UNUSED))])
    assert (found.groups, found.num_cut, found.cut_share) == (((5,),), 1, 0.5)


def test_what_waited_whole_for_its_group_counts_with_it() -> None:
    first = record(1, row("0-0-0", 5, outcome=RecordOutcome.KEPT), row("0-0-1", 7, "abort", RecordOutcome.KEPT))
    assert recorded_lengths([first, record(2, row("0-0-1", 30))]).groups == ((5, 30),)


def test_the_same_prompt_in_two_epochs_is_two_groups() -> None:
    assert recorded_lengths([record(1, row("0-3-0", 5)), record(9, row("1-3-0", 8))]).groups == ((5,), (8,))


def test_no_record_has_no_lengths() -> None:
    assert recorded_lengths([]).cut_share == 0.0
