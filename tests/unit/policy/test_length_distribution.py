"""What is known about the lengths of responses."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.policy.length_distribution import LengthDistribution

lengths = st.lists(st.integers(0, 60), max_size=40)


def known(values: list[int], capacity: int = 100) -> LengthDistribution:
    distribution = LengthDistribution(capacity)
    distribution.extend(values)
    return distribution


def test_conditional_survival_looks_only_at_responses_that_came_so_far() -> None:
    distribution = known([10, 20, 30, 40])
    assert distribution.conditional_survival(generated=15, more=0) == 1.0
    assert distribution.conditional_survival(generated=15, more=10) == pytest.approx(2 / 3)
    assert distribution.conditional_survival(generated=15, more=25) == 0.0


def test_a_smaller_window_keeps_the_newest_of_a_loaded_state() -> None:
    smaller = LengthDistribution(capacity=2)
    smaller.load_state(known([9, 1, 2]).export_state())
    assert (len(smaller), smaller.export_state(), smaller.mean) == (2, {"lengths": [1, 2]}, 1.5)
    assert smaller.conditional_survival(0, 2) == 0.0


@settings(deadline=None)
@given(lengths, st.integers(1, 20), st.integers(0, 70), st.integers(0, 70))
def test_a_window_agrees_with_counting(values: list[int], capacity: int, generated: int, more: int) -> None:
    window = values[-capacity:]
    distribution = known(values, capacity)
    assert len(distribution) == len(window)
    alive = [value for value in window if value > generated]
    expected = sum(value > generated + more for value in alive) / len(alive) if alive else 1.0
    assert distribution.conditional_survival(generated, more) == expected
    assert distribution.mean == (sum(window) / len(window) if window else 0.0)


@settings(deadline=None)
@given(lengths, lengths, st.integers(1, 20))
def test_a_restored_distribution_continues_as_if_never_stopped(
    before: list[int], after: list[int], capacity: int
) -> None:
    whole, restored = known(before, capacity), LengthDistribution(capacity)
    restored.load_state(json.loads(json.dumps(whole.export_state())))
    whole.extend(after)
    restored.extend(after)
    assert restored.export_state() == whole.export_state()
    survival = [[one.conditional_survival(0, tokens) for tokens in range(61)] for one in (restored, whole)]
    assert survival[0] == survival[1]
    assert restored.mean == whole.mean
