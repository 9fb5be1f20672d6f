"""Quantities as the API stores them: whole numbers with the largest suffix that loses nothing."""

import re
from fractions import Fraction

QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)?)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_MIN_BINARY = 1024


def canonical(text: str) -> str:
    """`4096Mi` is `4Gi`, `0.5` is `500m`, `1.5Gi` is `1536Mi`; what no whole number of nano says is rounded up.

    Errors: ValueError for what is no quantity.
    """
    match = QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no quantity")
    number, exponent, suffix = Fraction(match[1]), match[2], match[3] or ""
    if exponent:
        power = int(exponent[1:])
        return _shown(number * Fraction(10) ** power, 10, {p: f"e{p}" if p else "" for p in range(-9, 19, 3)})
    if suffix not in _BINARY:
        return _shown(number * Fraction(10) ** _DECIMAL[suffix], 10, {p: s for s, p in _DECIMAL.items()})
    amount = number * (1 << _BINARY[suffix])
    if abs(amount) < _MIN_BINARY or amount.denominator != 1:
        return _shown(amount, 10, {p: s for s, p in _DECIMAL.items()})
    return _shown(amount, 2, {p: s for s, p in (_BINARY | {"": 0}).items()})


def _shown(amount: Fraction, base: int, suffixes: dict[int, str]) -> str:
    """The amount with the largest power that leaves a whole number."""
    if amount == 0:
        return "0"
    for power in sorted(suffixes, reverse=True):
        scaled = amount / Fraction(base) ** power
        if scaled.denominator == 1:
            return f"{scaled.numerator}{suffixes[power]}"
    smallest = min(suffixes)
    scaled = amount / Fraction(base) ** smallest
    return f"{-(-scaled.numerator // scaled.denominator)}{suffixes[smallest]}"
