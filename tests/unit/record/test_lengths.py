"""Lengths of recorded rounds: whole responses only, each draw by the round that consumed it."""

from longshore.record.build import round_record
from longshore.record.lengths import recorded_lengths
from longshore.record.model import RecordOutcome, ResponseRow, RoundRecord
from longshore.rounds import messages
from longshore.rounds.messages import EpisodeLength
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


def test_an_episode_is_recorded_with_its_turns_and_the_time_of_its_environment() -> None:
    (one, *_) = played(TAIL_BATCHING, 3)
    ended = [message for _, message in one.facts.messages if isinstance(message, messages.EpisodeEnded)]
    of_response = {str(message.response): message.length for message in ended}
    lengths = {row.response: (row.turns, row.environment_s) for row in round_record(one.facts).responses if row.turns}
    assert lengths == {name: (length.num_turns, length.environment_s) for name, length in of_response.items()} != {}


def test_an_episode_keeps_what_it_took_besides_its_tokens() -> None:
    episode = row("0-0-0", 50).model_copy(update={"turns": 3, "environment_s": 7.5, "observed_tokens": 20})
    found = recorded_lengths([record(1, episode, row("0-1-0", 8))])
    assert found.groups == ((EpisodeLength(50, 3, 7.5, 20),), (8,))


def test_no_record_has_no_lengths() -> None:
    assert recorded_lengths([]).cut_share == 0.0
