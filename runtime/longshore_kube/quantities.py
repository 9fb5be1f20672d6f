"""Resource quantities such as `100m`, `1.5Gi` and `2e3`, exactly."""

import re
from fractions import Fraction

QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)?)")
"""Number, exponent and suffix."""
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_MIN_BINARY = 1024
_MEBI = 2**20
_MAX_CHARACTERS = 64
_MAX_EXPONENT = 30
"""The API has no quantities above 9.2e18. An exact number of any length could keep a process busy for hours."""


def parse_quantity(value: str | int | float) -> Fraction:
    """Return the exact value of a quantity.

    Raises:
        ValueError: it is none.
    """
    number, exponent, suffix = _parts(str(value))
    if exponent:
        return number * Fraction(10) ** int(exponent[1:])
    return number * _factor(suffix)


def canonical(text: str) -> str:
    """Return a quantity as the API stores it, whole with the largest suffix: `4096Mi` is `4Gi`, `0.5` is `500m`.

    What no whole number of nano expresses is rounded up.

    Raises:
        ValueError: it is no quantity.
    """
    number, exponent, suffix = _parts(text)
    if exponent:
        return _written(parse_quantity(text), 10, {power: f"e{power}" if power else "" for power in range(-9, 19, 3)})
    amount = number * _factor(suffix)
    if suffix in _BINARY and abs(amount) >= _MIN_BINARY and amount.denominator == 1:
        return _written(amount, 2, {power: suffix for suffix, power in (_BINARY | {"": 0}).items()})
    return _written(amount, 10, {power: suffix for suffix, power in _DECIMAL.items()})


def to_quantity(amount: Fraction) -> str:
    """Return an amount as a quantity, with the largest suffix that leaves a whole number."""
    if amount.denominator == 1 and amount % _MEBI == 0:
        return _written(amount, 2, {power: suffix for suffix, power in (_BINARY | {"": 0}).items()})
    return _written(amount, 10, {power: suffix for suffix, power in _DECIMAL.items()})


def _parts(text: str) -> tuple[Fraction, str, str]:
    match = QUANTITY.fullmatch(text) if len(text) <= _MAX_CHARACTERS else None
    if match is None or abs(int((match[2] or "e0")[1:])) > _MAX_EXPONENT:
        shown = text[:_MAX_CHARACTERS]
        raise ValueError(f"{shown!r} is not a quantity: write a number with an optional suffix, like 500m or 2Gi")
    return Fraction(match[1]), match[2] or "", match[3] or ""


def _factor(suffix: str) -> Fraction:
    return Fraction(2) ** _BINARY[suffix] if suffix in _BINARY else Fraction(10) ** _DECIMAL[suffix]


def _written(amount: Fraction, base: int, suffixes: dict[int, str]) -> str:
    """Return the amount with the largest power that leaves a whole number."""
    if amount == 0:
        return "0"
    for power in sorted(suffixes, reverse=True):
        scaled = amount / Fraction(base) ** power
        if scaled.denominator == 1:
            return f"{scaled.numerator}{suffixes[power]}"
    smallest = min(suffixes)
    scaled = amount / Fraction(base) ** smallest
    return f"{-(-scaled.numerator // scaled.denominator)}{suffixes[smallest]}"
