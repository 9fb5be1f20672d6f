"""Kubernetes quantities as numbers."""

from fractions import Fraction

_FACTORS = {
    "": Fraction(1), "m": Fraction(1, 1000),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50),
}  # fmt: skip


def parse_bytes(quantity: str | int) -> int:
    """Return bytes of a quantity such as `64Mi`, rounded down."""
    text = str(quantity)
    number = text.rstrip("mkKMGTPi")
    return int(Fraction(number) * _FACTORS[text[len(number) :]])
