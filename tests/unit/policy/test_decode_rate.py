"""How long a decode step takes, from the steps that were made."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.policy.decode_rate import DecodeRate, DecodeSteps
from tests.properties import examples

BATCHES = [DecodeSteps(num_steps, *batch) for num_steps in (1, 7) for batch in ((1, 0.1), (8, 0.2), (30, 0.9))]


def seen(base_s: float, per_request_s: float, per_cache_s: float, batches: list[DecodeSteps] = BATCHES) -> DecodeRate:
    """An engine of these rates made such steps."""
    rate = DecodeRate()
    for batch in batches:
        step_s = base_s + per_request_s * batch.num_running + per_cache_s * batch.kv_usage
        rate.add(batch, batch.num_steps * step_s)
    return rate


@settings(max_examples=examples(20), deadline=None)
@given(st.tuples(*[st.one_of(st.just(0.0), st.floats(1e-4, 1e-1))] * 3).filter(any))
def test_rates_are_found_from_steps_that_follow_them(rates: tuple[float, float, float]) -> None:
    base_s, per_request_s, per_cache_s = rates
    expected_s = 5 * (base_s + 16 * per_request_s + 0.5 * per_cache_s)
    assert seen(*rates).seconds(DecodeSteps(5, 16, 0.5)) == pytest.approx(expected_s, rel=1e-4)


def test_a_step_never_takes_less_for_more_requests_whatever_was_measured() -> None:
    rate = DecodeRate()
    for num_running, step_s in ((10, 0.5), (20, 0.4), (30, 0.2)):
        rate.add(DecodeSteps(1, num_running, 0.0), step_s)
    batches = [DecodeSteps(1, 1, 0.0), DecodeSteps(1, 30, 0.0), DecodeSteps(1, 60, 1.0)]
    steps = [rate.seconds(batch) for batch in batches]
    assert steps == sorted(steps)
    assert steps[0] > 0


def test_one_kind_of_batch_gives_its_own_time() -> None:
    rate = seen(0.01, 0.001, 0.0, [DecodeSteps(100, 20, 0.5)])
    assert rate.seconds(DecodeSteps(1, 20, 0.5)) == pytest.approx(0.03)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 64), st.floats(0.01, 1.0), st.floats(1e-3, 1.0))
def test_rounding_of_one_stretch_of_steps_does_not_give_all_its_time_to_the_cache(
    num_running: int, kv_usage: float, step_s: float
) -> None:
    rate = DecodeRate()
    rate.add(DecodeSteps(3, num_running, kv_usage), 3 * step_s)
    assert rate.seconds(DecodeSteps(1, num_running, 0.0)) > 0


def test_older_steps_fade() -> None:
    rate = seen(1.0, 0.0, 0.0)
    for _ in range(30):
        rate.fade()
        for batch in BATCHES:
            rate.add(batch, 2.0 * batch.num_steps)
    assert rate.seconds(DecodeSteps(1, 8, 0.2)) == pytest.approx(2.0, rel=0.01)


def test_it_survives_a_checkpoint() -> None:
    rate, restored = seen(0.01, 0.002, 0.1), DecodeRate()
    restored.load_state(json.loads(json.dumps(rate.export_state())))
    assert restored.is_known
    assert restored.seconds(DecodeSteps(3, 5, 0.5)) == rate.seconds(DecodeSteps(3, 5, 0.5))
