"""What the rest of a round would have taken with other engines, by the steps that requests make after the milestone."""

import pytest

from longshore.api.round_status import RoundKind
from longshore.policy.decode_rate import DecodeRate, DecodeSteps
from longshore.policy.draws import Draw
from longshore.policy.engine_load import EngineLoad
from longshore.policy.rollout_pace import RolloutPace
from longshore.policy.round import ResponseId

STAYING, LEAVING = 0, 1


def response(index: int) -> ResponseId:
    return ResponseId(Draw(0, index), 0)


def one_second_per_request() -> DecodeRate:
    rate = DecodeRate()
    for num_running in (1, 2, 4):
        rate.add(DecodeSteps(1, num_running, 0.0), num_running)
    return rate


def round_of(staying: int, leaving: int) -> RolloutPace:
    """A round with so many requests on each of two engines, of which none has finished yet."""
    pace = RolloutPace()
    pace.begun(RoundKind.LONG, {STAYING: 0, LEAVING: 0}, 1_000, 0.0)
    pace.placed(STAYING, [response(index) for index in range(staying)], 0.0)
    pace.placed(LEAVING, [response(10 + index) for index in range(leaving)], 0.0)
    return pace


def finish(pace: RolloutPace, engine: int, ended: dict[ResponseId, int], now_s: float) -> None:
    pace.left(engine, ended, list(ended), EngineLoad(0, 0, 0.0, 0, now_s), now_s)


def test_steps_before_requests_came_were_quicker_than_those_after() -> None:
    """Ten steps of a second, and then 30 of three seconds: a quarter of the steps in a tenth of the time."""
    pace = round_of(staying=1, leaving=2)
    pace.engines_left([LEAVING], now_s=10.0)
    moved = [response(10), response(11)]
    pace.left(LEAVING, dict.fromkeys(moved, 5), (), EngineLoad(0, 0, 0.0, 0, 10.0), 10.0)
    pace.placed(STAYING, moved, 10.0)
    finish(pace, STAYING, {response(0): 40, **dict.fromkeys(moved, 40)}, now_s=100.0)
    rate = one_second_per_request()
    assert pace.replayed_s(rate, [LEAVING]) == pytest.approx(pace.rest_s) == pytest.approx(90.0)
    assert pace.replayed_s(rate) == pytest.approx(60.0), "30 steps: of two requests where they were, of one here"


def test_an_engine_without_requests_makes_no_step_until_some_come() -> None:
    pace = round_of(staying=0, leaving=2)
    pace.engines_left([LEAVING], now_s=10.0)
    moved = [response(10), response(11)]
    pace.left(LEAVING, dict.fromkeys(moved, 5), (), EngineLoad(0, 0, 0.0, 0, 10.0), 10.0)
    pace.placed(STAYING, moved[:1], 10.0)
    pace.placed(STAYING, moved[1:], 20.0)
    finish(pace, STAYING, dict.fromkeys(moved, 30), now_s=60.0)
    together_s, alone_s = 20 * 2.0, 10 * 1.0
    assert pace.replayed_s(one_second_per_request()) == pytest.approx(together_s + alone_s)
