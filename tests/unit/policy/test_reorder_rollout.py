"""Reorder rollout step by step (verl's recipe): fill the engines, take the first N, recycle the rest, up to a bound."""

import pytest

from longshore.api.rollout import ReorderRolloutSettings
from longshore.api.round_status import RoundKind
from longshore.policy.draws import Draw
from longshore.policy.reorder_rollout import ReorderRollout
from longshore.policy.round import ResponseFinished, ResponseId
from longshore.policy.round_policy import NO_RULES, AdmissionRules, BatchShape
from tests.unit.policy.tables import DRAWS, Did, Ended, Table, cursor


def policy(
    num_prompts: int = 2,
    max_num_seqs: int = 8,
    rules: AdmissionRules = NO_RULES,
    *,
    max_postponements: int = 2,
    group_factor: float = 2.0,
    length_grouping: bool = False,
    keeps_tokens: bool = False,
) -> ReorderRollout:
    settings = ReorderRolloutSettings(
        max_postponements=max_postponements, group_factor=group_factor, length_grouping=length_grouping
    )
    shape = BatchShape(num_prompts, num_responses=2)
    return ReorderRollout(shape, cursor(), settings, max_num_seqs, rules, keeps_tokens=keeps_tokens)


def launched(table: Table, event: str = "start") -> str:
    """Letters of the draws that a round starts."""
    return " ".join(dict.fromkeys(name[0] for name in table.row(event).launch.split()))


def rows(letters: str) -> dict[str, int]:
    """Rows of the data by letter."""
    return {letter: DRAWS[letter].index for letter in letters}


def known_lengths(tokens: dict[str, int]) -> list[ResponseFinished]:
    """Responses to the prompts of an earlier epoch."""
    return [
        ResponseFinished(ResponseId(Draw(-1, DRAWS[letter].index), 0), engine_step=0, num_tokens=length)
        for letter, length in tokens.items()
    ]


@pytest.mark.parametrize(
    ("max_num_seqs", "engines", "draws"),
    [
        (8, (0,), "A B C D"),
        (4, (0, 1), "A B C D"),
        (7, (0,), "A B C"),
        (2, (0,), "A B"),
        (64, (0, 1), "A B C D"),
    ],
    ids=["fills one engine", "fills two", "whole groups", "at least the batch", "at most twice the batch"],
)
def test_a_round_starts_as_many_groups_as_the_engines_hold(
    max_num_seqs: int, engines: tuple[int, ...], draws: str
) -> None:
    assert launched(Table(policy(max_num_seqs=max_num_seqs), engines=engines)) == draws


@pytest.mark.parametrize(
    ("group_factor", "max_postponements", "draws"),
    [(1.0, 2, "A B"), (1.5, 2, "A B C"), (3.0, 2, "A B C D E F"), (9.0, 2, "A B C D E F"), (9.0, 1, "A B C D")],
    ids=["the batch", "half a batch more", "three batches", "what can be taken in time", "at once"],
)
def test_a_job_says_how_many_groups_are_in_play(group_factor: float, max_postponements: int, draws: str) -> None:
    rounds = policy(max_num_seqs=64, group_factor=group_factor, max_postponements=max_postponements)
    assert launched(Table(rounds)) == draws


def test_a_limit_on_active_requests_is_what_an_engine_holds() -> None:
    assert launched(Table(policy(rules=AdmissionRules(max_active_per_engine=6)))) == "A B C"


def test_the_first_n_groups_make_the_batch_and_the_rest_restarts_without_its_tokens() -> None:
    table = Table(policy())
    assert table.row("start") == Did(launch="A0 A1 B0 B1 C0 C1 D0 D1")
    assert table.row("B1 B0") == Did(accepted="B01", score="B01")
    assert table.row("A0 D0 D1") == Did(accepted="D01", score="D01", abort="A1 C0 C1", has_batch=True)
    assert table.end() == Ended(accepted="B01 D01", deferred="A C")
    assert table.row("start") == Did(launch="A0 A1 C0 C1 E0 E1 F0 F1"), "A0 is sampled again, by newer weights"


def test_after_x_rounds_draws_are_forced_together_in_a_long_round() -> None:
    """X = 1: what one round left over is the next batch, and nothing runs beside it that could only be put off."""
    table = Table(policy(max_postponements=1))
    table.rows("start", "B0 B1 D0 D1")
    assert table.end() == Ended(accepted="B01 D01", deferred="A C")
    assert table.row("start") == Did(launch="A0 A1 C0 C1")
    assert table.row("C0 C1") == Did(accepted="C01", score="C01")
    assert table.row("A0 A1") == Did(accepted="A01", score="A01", has_batch=True)
    assert table.end() == Ended(accepted="C01 A01", kind=RoundKind.LONG)
    assert launched(table) == "E F G H"


def test_a_long_round_takes_with_the_draw_that_is_due_those_that_waited_longest() -> None:
    table = Table(policy(max_postponements=2))
    table.rows("start", "C0 C1 D0 D1")
    assert table.end().deferred == "A B"
    assert launched(table) == "A B E F"
    table.row("B0 B1 E0 E1")
    assert table.end().deferred == "A F"
    assert launched(table) == "A F", "A is due; F was put off once; a fresh draw could only be put off"
    table.row("F0 F1")
    assert table.row("A0 A1").has_batch
    assert table.end() == Ended(accepted="F01 A01", kind=RoundKind.LONG)


def test_a_long_round_starts_no_more_groups_than_it_trains() -> None:
    """Three wait, and only one of them is due."""
    table = Table(policy(max_num_seqs=64, group_factor=2.5))
    assert launched(table) == "A B C D E"
    table.row("D0 D1 E0 E1")
    assert table.end().deferred == "A B C"
    assert launched(table) == "A B"
    table.row("A0 A1 B0 B1")
    assert table.end() == Ended(accepted="A01 B01", kind=RoundKind.LONG)
    assert launched(table) == "C F", "C is due now"


def test_kept_tokens_go_on_where_they_were() -> None:
    table = Table(policy(keeps_tokens=True))
    table.rows("start", "B0 B1 A1", "D0 D1")
    assert table.end() == Ended(accepted="B01 D01", deferred="A C", kept="A1 A0 C0 C1")
    assert table.row("start") == Did(launch="A0 C0 C1 E0 E1 F0 F1")
    assert table.row("A0") == Did(accepted="A10", score="A10")


def test_kept_tokens_are_refused_by_a_job_that_has_become_strict() -> None:
    relaxed = policy(keeps_tokens=True)
    table = Table(relaxed)
    table.rows("start", "B0 B1 D0 D1")
    table.end()
    with pytest.raises(ValueError, match=r"rollout.leftovers: groups still wait with tokens of older weights"):
        policy(keeps_tokens=False).load_state(relaxed.export_state())


def test_a_smaller_bound_is_refused_while_older_draws_wait() -> None:
    rounds = policy()
    table = Table(rounds)
    for event in ("B0 B1 D0 D1", "E0 E1 F0 F1"):
        table.rows("start", event)
        table.end()
    with pytest.raises(ValueError, match=r"rollout.reorderRollout.maxPostponements: 1 is too few for the 2 groups"):
        policy(max_postponements=1).load_state(rounds.export_state())


def test_without_any_history_length_grouping_keeps_the_order_of_the_data() -> None:
    table = Table(policy(max_num_seqs=4, length_grouping=True))
    assert launched(table) == "A B"
    assert table.row("A0 A1 B0 B1").has_batch
    assert table.end() == Ended(accepted="A01 B01"), "C and D were looked at ahead and wait; nobody has sampled them"


def test_length_grouping_puts_alike_lengths_together() -> None:
    """N = 2, X = 2, an engine for two groups; their lengths are known from an earlier epoch: 5, 9, 1, 8, 6, 2.

    The shortest go first, until the longest are due together: 5 + 6 + 9 steps instead of 9 + 8 + 6.
    """
    rounds = policy(max_num_seqs=4, length_grouping=True)
    table = Table(rounds)
    lengths = {"A": 5, "B": 9, "C": 1, "D": 8, "E": 6, "F": 2}
    rounds._lengths.observe(known_lengths(lengths))
    batches = []
    for _ in range(3):
        batch = launched(table)
        for letter in batch.split():
            table.row(f"{letter}0 {letter}1", num_tokens=lengths[letter])
        table.end()
        batches.append(batch)
    assert batches == ["C A", "F E", "B D"]


def test_a_prompt_that_was_cut_off_counts_as_longer_than_what_had_finished() -> None:
    rounds = policy(num_prompts=1, max_num_seqs=4, length_grouping=True)
    table = Table(rounds)
    table.row("start")
    table.row("B0 B1", num_tokens=40)
    assert table.end() == Ended(accepted="B01", deferred="A")
    table.row("start")  # C and D were never sampled: average ones, as long as B; A comes last.
    table.row("C0 C1", num_tokens=10)
    table.end()
    expected = {letter: rounds._lengths.expected_tokens(index) for letter, index in rows("ABC").items()}
    assert expected == {"A": 40, "B": 40, "C": 10}


def test_draws_that_wait_are_postponed_by_a_round_that_does_not_sample_them() -> None:
    """What length grouping has looked at is bounded as well."""
    rounds = policy(max_num_seqs=4, length_grouping=True, max_postponements=1)
    rounds._lengths.observe(known_lengths({"A": 90, "B": 90, "C": 1, "D": 1, "E": 1, "F": 1}))
    table = Table(rounds)
    assert launched(table) == "C D"
    table.row("C0 C1 D0 D1")
    table.end()
    assert launched(table) == "A B", "E and F are shorter, but A and B may wait for one round only"


def test_the_last_rounds_train_what_waits_and_start_nothing() -> None:
    rounds = policy()
    table = Table(rounds)
    table.rows("start", "B0 B1 D0 D1")
    table.end()
    assert launched(table, "drain") == "A C"
    table.row("A0 A1 C0 C1")
    assert table.end() == Ended(accepted="A01 C01", kind=RoundKind.LONG)
    assert rounds.num_deferred == 0


def test_what_was_learned_about_lengths_survives_a_restart() -> None:
    rounds, restarted = policy(length_grouping=True), policy(length_grouping=True)
    table = Table(rounds)
    table.row("start")
    table.row("B0 B1", num_tokens=3)
    table.row("D0 D1", num_tokens=7)
    table.end()
    restarted.load_state(rounds.export_state())
    assert restarted.export_state() == rounds.export_state()
    assert launched(Table(restarted)) == launched(table)
