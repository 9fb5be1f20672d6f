"""Numbers as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_cli import format as fmt


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.123, "0.12s"), (9.34, "9.3s"), (59.96, "1m00s"), (75, "1m15s"), (3599.9, "1h00m"), (7380, "2h03m")],
)
def test_duration(seconds: float, shown: str) -> None:
    assert fmt.duration(seconds) == shown


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [(0.5, 0.75, "0.500 → 0.750 (+0.250)"), (0.5, None, "0.500"), (None, 0.5, "0.500"), (None, None, "–")],
)
def test_change(before: float | None, after: float | None, shown: str) -> None:
    assert fmt.change(before, after) == shown


def test_count() -> None:
    assert [fmt.count(number, "round") for number in (0, 1, 1200)] == ["0 rounds", "1 round", "1,200 rounds"]


def test_a_sparkline_runs_from_the_least_to_the_greatest() -> None:
    assert fmt.sparkline([0, 1, 2, 3, 4, 5, 6, 7], 40) == "▁▂▃▄▅▆▇█"
    assert fmt.sparkline([3, 3], 40) == "▄▄"
    assert fmt.sparkline([], 40) == ""


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(1, 60))
def test_a_sparkline_never_exceeds_its_width(values: list[float], width: int) -> None:
    assert len(fmt.sparkline(values, width)) == min(len(values), width)
