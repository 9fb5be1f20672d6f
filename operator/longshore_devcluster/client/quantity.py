"""Exact arithmetic on Kubernetes resource quantities ("100m", "1.5Gi", "2e3")."""

import re
from fractions import Fraction

_PATTERN = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse_quantity(value: str | int | float) -> Fraction:
    """The exact value of a quantity.

    Errors: ValueError when it is not a quantity.
    """
    match = _PATTERN.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"{value!r} is not a quantity: write a number with an optional suffix, like 500m or 2Gi")
    number, exponent, suffix = Fraction(match[1]), match[2], match[3] or ""
    if exponent:
        return number * Fraction(10) ** int(exponent[1:])
    if suffix in _BINARY:
        return number * (1 << _BINARY[suffix])
    return number * Fraction(10) ** _DECIMAL[suffix]
