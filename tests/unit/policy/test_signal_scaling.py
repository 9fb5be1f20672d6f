"""Learning rates that follow the signal of updates."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.policy.signal_scaling import MAX_FACTOR, WINDOW_UPDATES, recent_signals, signal_factor
from tests.properties import examples

SIGNALS = st.lists(st.floats(0, 1), min_size=1, max_size=60)


def factors(signals: list[float]) -> list[float]:
    recent: tuple[float, ...] = ()
    found = []
    for signal in signals:
        recent = recent_signals(recent, signal)
        found.append(signal_factor(recent))
    return found


def test_updates_with_equal_signals_keep_the_learning_rate_of_the_schedule() -> None:
    assert factors([0.25] * 30) == [1.0] * 30


def test_in_tail_batching_the_long_round_learns_more_and_the_mean_stays() -> None:
    periods = factors([0.1, 0.1, 0.1, 0.1, 0.6] * 4)
    assert periods[-5:] == pytest.approx([0.5, 0.5, 0.5, 0.5, 3.0])
    assert sum(periods[-5:]) == pytest.approx(5.0)


def test_a_signal_after_many_updates_without_one_is_bounded() -> None:
    assert factors([0.0] * 20 + [1.0]) == [0.0] * 20 + [MAX_FACTOR]


@settings(max_examples=examples(200))
@given(SIGNALS, SIGNALS)
def test_a_factor_depends_on_the_window_alone_and_is_within_bounds(old: list[float], new: list[float]) -> None:
    new = (new * WINDOW_UPDATES)[: max(WINDOW_UPDATES, len(new))]
    assert factors([*old, *new])[-1] == factors(new)[-1]
    assert all(0 <= factor <= MAX_FACTOR for factor in factors(old))
