"""Tail batching step by step (RollPacker, section 3)."""

from longshore.api.rollout import TailBatching as Knobs
from longshore.api.status import RoundKind
from longshore.policy.draws import Draw, DrawCursor
from longshore.policy.round import ResponseFinished, ResponseId
from longshore.policy.round_policy import BatchShape
from longshore.policy.tail_batching import TailBatching


def policy(num_prompts: int, num_responses: int, eta: float = 1.25, num_rows: int = 100) -> TailBatching:
    knobs = Knobs(prompt_factor=eta, response_factor=eta)
    return TailBatching(BatchShape(num_prompts, num_responses), DrawCursor(num_rows, seed=0), knobs)


def finish_in_order(rounds: TailBatching, launched: tuple[ResponseId, ...]) -> None:
    for step, response in enumerate(launched):
        if rounds.responses_finished([ResponseFinished(response, step)]).ended:
            return


def test_a_short_round_launches_eta_times_prompts_and_responses() -> None:
    start = policy(num_prompts=4, num_responses=4).start_round()
    assert start.kind is RoundKind.SHORT
    assert len({response.draw for response in start.decision.launch}) == 5
    assert len(start.decision.launch) == 5 * 5


def test_the_first_r0_responses_of_a_prompt_are_kept_and_the_rest_aborted() -> None:
    rounds = policy(num_prompts=2, num_responses=2, eta=1.5)
    draw = rounds.start_round().decision.launch[0].draw
    assert rounds.responses_finished([ResponseFinished(ResponseId(draw, 2), 5)]).accepted == ()
    decision = rounds.responses_finished([ResponseFinished(ResponseId(draw, 0), 6)])
    assert [group.responses for group in decision.accepted] == [(2, 0)]
    assert decision.abort == (ResponseId(draw, 1),)
    assert not decision.ended


def test_the_round_ends_with_the_first_p0_served_prompts_and_defers_the_others() -> None:
    rounds = policy(num_prompts=4, num_responses=2)
    launched = rounds.start_round().decision.launch
    finish_in_order(rounds, launched)
    end = rounds.end_round()
    assert len(end.accepted) == 4
    assert end.deferred == (launched[-1].draw,)
    assert end.kept == ()
    assert rounds.num_deferred == 1


def test_four_short_rounds_then_a_long_one_without_speculation() -> None:
    rounds = policy(num_prompts=4, num_responses=4)
    kinds = []
    deferred: list[Draw] = []
    for _ in range(5):
        start = rounds.start_round()
        kinds.append(start.kind)
        if start.kind is RoundKind.LONG:
            assert len(start.decision.launch) == 4 * 4
            assert list(dict.fromkeys(response.draw for response in start.decision.launch)) == deferred
        finish_in_order(rounds, start.decision.launch)
        deferred += rounds.end_round().deferred
    assert kinds == [RoundKind.SHORT] * 4 + [RoundKind.LONG]
    assert rounds.num_deferred == 0


def test_completions_that_tie_are_decided_by_engine_step_and_draw() -> None:
    outcomes = []
    for reverse in (False, True):
        rounds = policy(num_prompts=1, num_responses=2, eta=2.0)
        launched = rounds.start_round().decision.launch
        events = [ResponseFinished(response, 7) for response in launched]
        rounds.responses_finished(events[::-1] if reverse else events)
        outcomes.append(rounds.end_round())
    assert outcomes[0] == outcomes[1]


def test_a_group_whose_reward_failed_is_replaced_by_a_fresh_draw_in_the_same_round() -> None:
    rounds = policy(num_prompts=1, num_responses=2, eta=1.0)
    launched = rounds.start_round().decision.launch
    finish_in_order(rounds, launched)
    replacement = rounds.group_rejected(launched[0].draw)
    assert not replacement.ended
    assert len(replacement.launch) == 2
    assert replacement.launch[0].draw != launched[0].draw
    finish_in_order(rounds, replacement.launch)
    assert [group.draw for group in rounds.end_round().accepted] == [replacement.launch[0].draw]


def test_events_that_come_after_the_cut_off_change_nothing() -> None:
    rounds = policy(num_prompts=1, num_responses=2, eta=2.0)
    launched = rounds.start_round().decision.launch
    finish_in_order(rounds, launched)
    late = rounds.responses_finished([ResponseFinished(launched[-1], 99)])
    assert (late.launch, late.abort, late.accepted) == ((), (), ())


def test_eta_times_a_count_is_not_rounded_up_by_a_rounding_error() -> None:
    start = policy(num_prompts=10, num_responses=10, eta=1.1).start_round()
    assert len(start.decision.launch) == 11 * 11
