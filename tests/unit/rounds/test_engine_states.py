"""Which engines serve, which are out of the round, and which come back by whom."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.rounds.engine_states import OUT_OF_ROUND, TRANSITIONS, EngineEvent, EngineState, EngineStates
from tests.properties import examples


def serving(*engines: int) -> EngineStates:
    """Engines that have the current weights."""
    states = EngineStates(engines)
    for event in (EngineEvent.STARTED, EngineEvent.SENT, EngineEvent.CONFIRMED):
        states.change_all(engines, event)
    assert states.of(EngineState.SERVING) == sorted(engines)
    return states


def test_new_weights_are_confirmed_before_an_engine_serves_with_them() -> None:
    states = serving(0, 1)
    states.change_all([0, 1], EngineEvent.SENT)
    assert states.of(EngineState.SERVING) == []
    states.change(1, EngineEvent.CONFIRMED)
    states.change(0, EngineEvent.FAILED)
    assert (states.of(EngineState.SERVING), states[0]) == ([1], EngineState.WAITING)


def test_an_engine_that_left_the_round_does_not_serve_when_its_confirmation_comes() -> None:
    states = serving(0)
    states.change(0, EngineEvent.SENT)
    states.change(0, EngineEvent.LEFT)
    assert states.change(0, EngineEvent.CONFIRMED) is EngineState.ASLEEP


def test_a_round_hears_of_losses_of_its_engines_and_the_next_starts_the_others_again() -> None:
    states = serving(0, 1)
    states.change(1, EngineEvent.LEFT)
    assert [states.lose(engine) for engine in (0, 1)] == [True, False]
    assert states.of(EngineState.SERVING) == []
    assert states.wake() == [1]
    assert (states[0], states[1]) == (EngineState.LOST, EngineState.STARTING)
    assert states.wake() == [], "once"


def test_a_loss_is_reported_once() -> None:
    states = serving(0)
    assert [states.lose(0), states.lose(0)] == [True, False]


def test_a_loss_unanswered_before_the_engines_sleep_is_made_good_when_they_wake() -> None:
    states = serving(0, 1)
    states.lose(0)
    states.leave()
    assert states.are_out_of_round
    assert states.wake() == [0]


def test_an_engine_that_starts_while_the_others_sleep_sleeps_too() -> None:
    states = EngineStates([0, 1])
    states.leave()
    states.change(0, EngineEvent.STARTED)
    assert (states[0], states[1]) == (EngineState.ASLEEP, EngineState.LEFT_OUT)
    assert states.wake() == []
    assert (states[0], states[1]) == (EngineState.WAITING, EngineState.STARTING)


def test_engines_of_another_size_are_out_of_the_round_at_first() -> None:
    states = serving(0, 1)
    states.lose(1)
    states.replace_all(asleep=[2], starting=[3])
    assert states.are_out_of_round
    assert (states[2], states[3]) == (EngineState.ASLEEP, EngineState.LEFT_OUT)
    with pytest.raises(KeyError):
        states[0]


@given(st.lists(st.sampled_from(EngineEvent), max_size=30))
@settings(max_examples=examples(500))
def test_whatever_happens_each_loss_has_one_who_starts_the_engine_again(happenings: list[EngineEvent]) -> None:
    """Either the round, which was notified since the engine last started, or the next time that the engines wake."""
    states, num_notified, num_replaced = EngineStates([0]), 0, 0
    for event in happenings:
        if (states[0], event) not in TRANSITIONS:
            continue
        if event is EngineEvent.LOST:
            num_notified += states.lose(0)
        elif event is EngineEvent.WOKEN:
            was_missing = states[0] is EngineState.MISSING
            assert (states.wake() == [0]) is was_missing
            if was_missing:
                num_notified = num_replaced = 0
        else:
            states.change(0, event)
            num_notified += event is EngineEvent.REPORTED
            num_replaced += event is EngineEvent.REPLACED
        assert (states[0] is EngineState.LOST) <= (num_notified > num_replaced)
        assert states.are_out_of_round is (states[0] in OUT_OF_ROUND)


def test_late_answers_change_nothing_once_an_engine_is_gone() -> None:
    late = (EngineEvent.STARTED, EngineEvent.CONFIRMED, EngineEvent.FAILED, EngineEvent.LOST)
    for state in (EngineState.MISSING, EngineState.LOST):
        assert [TRANSITIONS[state, event] for event in late] == [state] * len(late)


def test_every_state_can_be_left_and_every_event_can_happen() -> None:
    assert {state for state, _ in TRANSITIONS} == set(EngineState)
    assert {event for _, event in TRANSITIONS} == set(EngineEvent)
    for state in EngineState:
        assert any(after is not state for (before, _), after in TRANSITIONS.items() if before is state)
