"""Numbers as people read them."""

import pytest

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
