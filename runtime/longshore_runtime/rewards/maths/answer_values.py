r"""Values compared as mathematics: `\frac{1}{2}` equals `0.5`, `(x+1)^2` equals `x^2+2x+1`.

math-verify parses LaTeX to SymPy, and proves that formulas are equal. Numbers are compared here: exactly, or as far as
a decimal states them.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import sympy
from math_verify import LatexExtractionConfig, parse, verify
from sympy.core.function import AppliedUndef

logging.getLogger("math_verify").setLevel(logging.ERROR)  # It warns of every call without its own time limit.

_CONFIG: Final = LatexExtractionConfig(boxed_match_priority=0)
_WHOLE: Final = (replace(_CONFIG, normalization_config=replace(_CONFIG.normalization_config, units=False)),)
"""Settings to parse the content of a box, all of it or nothing; units have been separated before."""
_DROPPED: Final = re.compile(
    r"'|\\prime|\^\{?\s*(?:T\b|\\top|\\perp|\\dagger|\*)|(?<=\d)_|\\[pb]?mod\b|\.\.\.|\\[lc]?dots\b|\\text|"
    r"\\(?:bar|hat|vec|tilde|dot|overline|underline|mathbb|mathfrak|mathcal|aleph|partial|nabla|operatorname)\b|"
    r"\\(?:angle|triangle|overrightarrow)\b|\d \d|\\(?:gcd|lcm)\s*\([^()]*[A-Za-z]"
)
"""Notation that the parser drops or misreads: derivatives, transposes, bases of numbers, remainders, accents, names,
numbers without a sign between them, common divisors of formulas."""
_NUMERAL: Final = re.compile(r"[-+]?\s*(?:\d+(?:\.\d*)?|\.\d+)")
_IMAGINARY: Final = re.compile(r"(?<=\d)i(?![A-Za-z])")
_FACTOR: Final = re.compile(r"((?<![\w.])\d+(?:\.\d+)?|\d\)) ?(?=\()")
"""Pattern of a number before brackets, which the parser adds to what they hold."""
_TIMES: Final = r"\1\\cdot"
_LOG: Final = re.compile(r"\\log(?![A-Za-z]|\s*_)")
_EXACT_FUNCTIONS: Final = (
    sympy.Add, sympy.Mul, sympy.Pow, sympy.factorial, sympy.binomial, sympy.Abs, sympy.floor, sympy.ceiling,
    sympy.UnevaluatedExpr,
)  # fmt: skip
"""Functions that are computed exactly, where that gives a fraction of integers."""
_MAX_EXACT_BITS: Final = 100_000
"""Largest size of a number that is computed exactly.

It takes milliseconds to compute; a tower of powers has any size.
"""
_DIGITS: Final = 30
"""Number of digits to which irrational numbers are computed."""
_SAME_NUMBER: Final = 1e-20
"""Largest relative difference of two irrational numbers that are equal."""
_NOTHING: Final = 1e-100
"""Size below which a computed number may be zero."""
_SIX_PLACES: Final = sympy.Rational(1, 10**6)
_MIN_DIGITS: Final = 9
_MAX_RELATIVE_ERROR: Final = sympy.Rational(1, 10**4)
"""Largest error of a decimal that is right to six places: 0.000123 is not 0.0001234."""
_NOT_FINITE: Final = (sympy.oo, -sympy.oo, sympy.zoo, sympy.nan)
_EVALUATION_ERRORS: Final = (
    TypeError, ValueError, OverflowError, AttributeError, ArithmeticError, RecursionError, MemoryError,
)  # fmt: skip


@dataclass(frozen=True)
class _Number:
    """A number, with decimals as fractions."""

    value: sympy.Expr
    last_place: sympy.Rational | None
    """Value of a one in the last place of a decimal; None: the number is no decimal."""

    @property
    def is_precise(self) -> bool:
        """Whether a decimal has six places, or so many digits that it can only be a rounded value."""
        place = self.last_place
        return place is not None and (place <= _SIX_PLACES or abs(self.value) >= place * 10 ** (_MIN_DIGITS - 1))


def is_opaque(text: str) -> bool:
    """Return whether an answer has notation that only text can be compared by."""
    letters = set(re.findall(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", text)))
    return bool(_DROPPED.search(text)) or any(letter.swapcase() in letters for letter in letters)


def is_number(text: str) -> bool:
    """Return whether an expression is a number, written however."""
    return _number(expression(text)) is not None


def is_formula(text: str) -> bool:
    r"""Return whether an expression combines letters to a formula; a letter or `\sin x` is a name."""
    parsed = expression(text)
    is_name = isinstance(parsed, sympy.Symbol | sympy.Function) and not isinstance(parsed, sympy.Abs)
    return parsed is not None and not is_name and not is_number(text)


def expressions_agree(ours: str, theirs: str, *, percent: tuple[bool, bool] = (False, False)) -> bool:
    """Return whether two expressions are equal; `percent` says which are percentages, where 50 % is 0.5 and 50."""
    first, second = _numeral(ours), _numeral(theirs)
    if first is not None and second is not None and percent[0] == percent[1]:
        return _numbers_agree(first, second)
    reference, given = expression(ours), expression(theirs)
    if reference is None or given is None:
        return False
    if _equal(reference, given):
        return True
    if percent[0] != percent[1]:
        return _equal(*_as_fractions(reference, given, percent[0]))
    if "\\log" in ours + theirs:  # Of base 10 for some, and natural for others.
        natural = [expression(_LOG.sub(r"\\ln", side)) for side in (ours, theirs)]
        return None not in natural and _equal(*natural)
    return False


def differences_agree(ours: Sequence[str], theirs: Sequence[str], *, is_directed: bool) -> bool:
    """Return whether two equations or inequalities, given as their sides, are equal but for a factor.

    The factor is a number, which must be positive if they are directed.
    """
    if any(is_opaque(side) for side in (*ours, *theirs)):
        return False
    sides: list[Any] = [expression(side) for side in (*ours, *theirs)]
    if not all(isinstance(side, sympy.Expr) for side in sides):
        return False
    try:
        first, second = sides[0] - sides[1], sides[2] - sides[3]
        if not is_directed:
            first, second = (sympy.fraction(sympy.together(side))[0] for side in (first, second))
    except _EVALUATION_ERRORS:
        return False
    symbols = frozenset(first.free_symbols)
    if not symbols or symbols != frozenset(second.free_symbols):
        return False
    ratios = []
    for offset in range(3):
        one, other = (_value_at(side, symbols, offset) for side in (first, second))
        if not one or not other:
            return False
        ratios.append(one / other)
    is_constant = all(abs(ratio - ratios[0]) <= 1e-9 * abs(ratios[0]) for ratio in ratios)
    return is_constant and (not is_directed or (ratios[0].real > 0 and ratios[0].imag == 0))


def is_rounded(exact: str, rounded: str) -> bool:
    """Return whether a decimal, with however few places, is what a number may be rounded to."""
    number, decimal = _number(expression(exact)), _numeral(rounded)
    if number is None or decimal is None or decimal.last_place is None:
        return False
    return _is_within(number.value, decimal.value, decimal.last_place / 2)


@lru_cache(maxsize=1_024)
def expression(text: str) -> Any | None:
    """Return a value of SymPy; None: this is not mathematics that the parser can read."""
    if _NUMERAL.fullmatch(text):
        plain = text.replace(" ", "")
        return sympy.Float(plain) if "." in plain else sympy.Integer(plain)
    boxed = rf"\boxed{{{_FACTOR.sub(_TIMES, _IMAGINARY.sub(' i', text))}}}"
    try:
        found = parse(boxed, _WHOLE, fallback_mode="no_fallback", extraction_mode="first_match", parsing_timeout=None)
    except (RecursionError, MemoryError):
        return None
    return found[0] if found else None


def _as_fractions(reference: Any, given: Any, is_percentage: bool) -> tuple[Any, Any]:
    """Return both sides as fractions: 0.5 is 50 %, whichever of the two states it."""
    hundredth = sympy.Rational(1, 100)
    try:
        return (reference * hundredth, given) if is_percentage else (reference, given * hundredth)
    except TypeError:
        return reference, given


def _equal(reference: Any, given: Any) -> bool:
    if isinstance(reference, sympy.MatrixBase) and isinstance(given, sympy.MatrixBase):
        pairs = zip(reference.flat(), given.flat(), strict=False)
        return reference.shape == given.shape and all(_equal(one, other) for one, other in pairs)
    ours, theirs = _number(reference), _number(given)
    if ours is not None and theirs is not None:
        return _numbers_agree(ours, theirs)
    if _differ_somewhere(reference, given):
        return False
    return bool(verify(reference, given, timeout_seconds=None, allow_set_relation_comp=True))


def _numeral(text: str) -> _Number | None:
    """Return the number that digits state, at once; None: the text is something else."""
    if _NUMERAL.fullmatch(text) is None:
        return None
    plain = text.replace(" ", "")
    places = plain.partition(".")[2]
    return _Number(sympy.Rational(plain), sympy.Rational(1, 10 ** len(places)) if places else None)


def _number(parsed: Any) -> _Number | None:
    """Return a finite number, None for all else."""
    if not isinstance(parsed, sympy.Expr) or parsed.free_symbols or parsed.has(AppliedUndef, *_NOT_FINITE):
        return None
    floats = parsed.atoms(sympy.Float)
    if not floats:
        return _Number(parsed, None)
    with sympy.evaluate(False):  # Powers of fractions may have any number of digits.
        value = parsed.xreplace({number: sympy.Rational(str(number)) for number in floats})
    return _Number(value, _last_place(parsed))


def _last_place(parsed: sympy.Expr) -> sympy.Rational | None:
    """Return the last place of a decimal, which may be multiplied by a power of ten; None: it is none."""
    if isinstance(parsed, sympy.Float):
        mantissa, _, exponent = str(parsed).partition("e")
        digits = mantissa.partition(".")[2].rstrip("0")
        return sympy.Rational(10) ** (int(exponent or 0) - len(digits))
    if isinstance(parsed, sympy.Mul) and len(parsed.args) == 2:
        decimal, power = sorted(parsed.args, key=lambda factor: not isinstance(factor, sympy.Float))
        scale = _exact_number(power)
        if isinstance(decimal, sympy.Float) and scale is not None and re.fullmatch("10*(/10*)?", str(scale)):
            return _last_place(decimal) * scale
    return None


def _numbers_agree(ours: _Number, theirs: _Number) -> bool:
    exact = _exact_number(ours.value), _exact_number(theirs.value)
    if (exact[0] == exact[1]) if None not in exact else _same_irrational(ours.value, theirs.value):
        return True
    decimals = [side for side in (ours, theirs) if side.last_place is not None]
    rounded: Any = max(decimals, key=lambda side: side.last_place or 0, default=None)
    if rounded is None or not rounded.is_precise or ours.last_place == theirs.last_place:
        return False
    place = max(rounded.last_place, _SIX_PLACES) if len(decimals) == 1 else rounded.last_place
    tolerance = min(place / 2, abs(rounded.value) * _MAX_RELATIVE_ERROR)
    return _is_within(ours.value, theirs.value, tolerance)


def _same_irrational(ours: sympy.Expr, theirs: sympy.Expr) -> bool:
    try:
        values = [sympy.N(value, _DIGITS) for value in (ours, theirs)]
        if any(value.has(*_NOT_FINITE) for value in values):
            return False
        size = max(map(abs, values))
        if size > _NOTHING:
            return bool(abs(values[0] - values[1]) <= size * _SAME_NUMBER)
    except _EVALUATION_ERRORS:
        pass
    return bool(verify(ours, theirs, timeout_seconds=None))


def _is_within(ours: sympy.Expr, theirs: sympy.Expr, tolerance: sympy.Rational) -> bool:
    try:
        return bool(abs(sympy.N(ours - theirs, _DIGITS)) <= tolerance)
    except _EVALUATION_ERRORS:
        return False


def _differ_somewhere(reference: Any, given: Any) -> bool:
    """Return whether two formulas have different values at a point, which is found faster than that they are equal."""
    if not (isinstance(reference, sympy.Expr) and isinstance(given, sympy.Expr)):
        return False
    if reference.has(sympy.Float) or given.has(sympy.Float):
        return False
    symbols = frozenset(reference.free_symbols | given.free_symbols)
    ours, theirs = (_value_at(side, symbols, 0) for side in (reference, given))
    return ours is not None and theirs is not None and abs(ours - theirs) > 1e-9 * max(abs(ours), abs(theirs))


def _value_at(parsed: sympy.Expr, symbols: frozenset[sympy.Symbol], offset: int) -> complex | None:
    """Return the value with all letters positive and different; None: it cannot be computed."""
    ordered = sorted(symbols, key=str)
    point = {
        symbol: sympy.Float(13 * number + 17 * offset + 15, _DIGITS) / (11 + number)
        for number, symbol in enumerate(ordered)
    }
    try:
        return complex(parsed.xreplace(point).evalf(_DIGITS))
    except _EVALUATION_ERRORS:
        return None


def _exact_number(value: Any) -> sympy.Rational | None:
    """Return the fraction that an expression without decimals is; None: it is none, or too large to compute."""
    if isinstance(value, sympy.Rational):
        return value
    if not isinstance(value, _EXACT_FUNCTIONS):
        return None
    numbers = [number for number in map(_exact_number, value.args) if number is not None]
    if len(numbers) < len(value.args) or _most_bits(value.func, numbers) > _MAX_EXACT_BITS:
        return None
    result = numbers[0] if isinstance(value, sympy.UnevaluatedExpr) else value.func(*numbers)
    return result if isinstance(result, sympy.Rational) else None


def _most_bits(function: type, numbers: list[sympy.Rational]) -> int:
    """Return how many bits a function of these numbers has at most, without computing it."""
    if function is sympy.Pow:
        return _num_bits(numbers[0]) * _magnitude(numbers[1])
    if function is sympy.factorial:
        return _num_bits(numbers[0]) * _magnitude(numbers[0])
    if function is sympy.binomial:
        return (_num_bits(numbers[0]) + _num_bits(numbers[1])) * _magnitude(numbers[1])
    return sum(map(_num_bits, numbers))


def _num_bits(number: sympy.Rational) -> int:
    return int(number.p).bit_length() + int(number.q).bit_length()


def _magnitude(number: sympy.Rational) -> int:
    """Return a whole number of at least its size."""
    return abs(int(number.p)) // int(number.q) + 1
