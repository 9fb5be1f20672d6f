"""Quantities are exact."""

from fractions import Fraction

import pytest

from longshore_kube.quantities import parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("100m", Fraction(1, 10)),
        ("1.5Gi", Fraction(3 << 29)),
        ("2e3", Fraction(2000)),
        ("1E", Fraction(10**18)),
        ("1E3", Fraction(1000)),
        (".5", Fraction(1, 2)),
        (4, Fraction(4)),
        ("3n", Fraction(3, 10**9)),
    ],
)
def test_value_of_a_quantity(text: str | int, value: Fraction) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "1gb", "1 Gi", "Gi", "--1"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        parse_quantity(text)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("text", ["1e99999999", "1E-99999999", "9" * 5_000_000, f"1.{'0' * 100}"])
def test_a_number_whose_exact_value_is_too_long_is_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        parse_quantity(text)
