r"""Answers compared as mathematics: 1/2 equals 0.5, and `#### 1,000` equals \boxed{1000}.

math-verify parses and compares. Its own way of finding an answer in a text takes any part that it can read (12 of
`12\pi`), and its parser drops notation that it does not know, so that both are kept to whole answers and to notation
that it reads in full. Everything else is compared as text.
"""

import logging
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import sympy
from math_verify import LatexExtractionConfig, parse, verify

from longshore_runtime.rewards.answer_notation import Quantity, as_words, quantity, tidied
from longshore_runtime.rewards.final_answers import answer_of_cut, begins_with_words, final_answer
from longshore_runtime.rewards.references import MAX_CHARACTERS, answer_of_reference, unreadable_reference

logging.getLogger("math_verify").setLevel(logging.ERROR)  # It warns of every call without its own time limit.

_CONFIG: Final = LatexExtractionConfig(boxed_match_priority=0)
_WHOLE: Final = (replace(_CONFIG, normalization_config=replace(_CONFIG.normalization_config, units=False)),)
"""The content of a box, all of it or nothing; units have been separated before."""
_DROPPED: Final = re.compile(
    r"'|\\prime|\^\{?\s*(?:T\b|\\top|\\perp|\\dagger|\*)|(?<=\d)_|\\[pb]?mod\b|\.\.\.|\\[lc]?dots\b|"
    r"\\(?:bar|hat|vec|tilde|dot|overline|underline|mathbb|mathfrak|mathcal|aleph|partial|nabla|operatorname)\b"
)
"""Notation that the parser drops or misreads: derivatives, transposes, bases of numbers, remainders, accents, names."""
_CHOICE: Final = re.compile(r"^\(?([A-J])(?:\)|(?=$))")
_OTHER_CHOICE: Final = re.compile(r"\(([A-J])\)")
_ORDERED: Final = ("(", "[")
_MAX_RELATIVE_ERROR: Final = 1e-4
"""Of a decimal that is right to six places: 0.000123 is not 0.0001234."""
_EXACT: Final = 1e-9
_EXACT_FUNCTIONS: Final = (
    sympy.Add, sympy.Mul, sympy.Pow, sympy.factorial, sympy.binomial, sympy.Abs, sympy.floor, sympy.ceiling,
    sympy.UnevaluatedExpr,
)  # fmt: skip
"""What is computed exactly, where that gives a fraction of integers."""
_MAX_EXACT_BITS: Final = 100_000
"""Of a number that is computed exactly, which takes milliseconds: a tower of powers has any size."""
_RELATION: Final = re.compile(r"[<>=≤≥]|\\(?:leq?|geq?|lt|gt|in|cup|cap|setminus)(?![A-Za-z])")
_IMAGINARY: Final = re.compile(r"(?<=\d)i(?![A-Za-z])")
_LOG: Final = re.compile(r"\\log(?![A-Za-z]|\s*_)")


@dataclass(frozen=True)
class _ParsedAnswer:
    """One final answer in every form that it is compared in."""

    text: str
    words: str | None
    quantity: Quantity

    @property
    def is_opaque(self) -> bool:
        """Whether it has notation that only text can be compared by."""
        letters = set(re.findall(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", self.text)))
        return bool(_DROPPED.search(self.text)) or any(letter.swapcase() in letters for letter in letters)


def answers_agree(response: str, answer: str, *, prompt: str = "", is_cut: bool = False) -> bool:
    """Whether the final answer of a response equals the reference; a response without an answer does not.

    `prompt` may have begun the thinking of a response that `is_cut`.

    The caller limits the time: math-verify's own limit is an alarm signal, which works in a main thread only.

    Raises:
        ValueError: the reference cannot be read.
    """
    if reason := unreadable_reference(answer):
        raise ValueError(reason)
    reference = _reference(answer)
    in_words = reference.words is not None or begins_with_words(reference.text)
    given = answer_of_cut(prompt, response, in_words=in_words) if is_cut else final_answer(response, in_words=in_words)
    if given is None or len(given) > MAX_CHARACTERS:
        return False
    return _agree(reference, _read(given))


@lru_cache(maxsize=1_024)
def _reference(answer: str) -> _ParsedAnswer:
    return _read(answer_of_reference(answer))


def _read(answer: str) -> _ParsedAnswer:
    tidy = tidied(answer)
    return _ParsedAnswer(tidy, as_words(tidy), quantity(tidy))


def _agree(reference: _ParsedAnswer, given: _ParsedAnswer) -> bool:
    if _squeezed(reference.text) == _squeezed(given.text):
        return True
    if reference.words is not None or given.words is not None:
        return _words_agree(reference, given)
    if (choice := _CHOICE.match(reference.text)) and choice.end() == len(reference.text):
        return _chosen(given.text) == choice.group(1)
    ours, theirs = reference.quantity, given.quantity
    if not _units_agree(ours.unit, theirs.unit):
        return False
    if _squeezed(ours.value) == _squeezed(theirs.value):
        return True
    if reference.is_opaque or given.is_opaque:
        return False
    return _values_agree(ours, theirs)


def _words_agree(reference: _ParsedAnswer, given: _ParsedAnswer) -> bool:
    ours = reference.words or _squeezed(reference.text).casefold()
    theirs = given.words or _squeezed(given.text).casefold()
    if ours.strip("()") == theirs.strip("()"):
        return True
    choice = _CHOICE.match(ours.upper())
    return choice is not None and choice.end() == len(ours) and _chosen(given.text) == choice.group(1)


def _chosen(text: str) -> str | None:
    """The letter of a multiple choice with which an answer begins; None: none, or several."""
    plain = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text).strip()
    choice = _CHOICE.match(plain)
    others = set(_OTHER_CHOICE.findall(plain))
    return choice.group(1) if choice and others <= {choice.group(1)} else None


def _units_agree(ours: str | None, theirs: str | None) -> bool:
    return ours is None or theirs is None or ours == theirs


def _values_agree(ours: Quantity, theirs: Quantity) -> bool:
    if _confuses_order(ours.value, theirs.value) or _confuses_order(theirs.value, ours.value):
        return False
    reference, given = _expression(ours.value), _expression(theirs.value)
    if reference is None or given is None:
        return False
    if _equal(reference, given):
        return True
    if (ours.unit == "percent") != (theirs.unit == "percent"):
        return _equal(*_as_fractions(reference, given, ours.unit == "percent"))
    if "\\log" in ours.value + theirs.value:  # Of base 10 for some, and natural for others.
        natural = [_expression(_LOG.sub(r"\\ln", side.value)) for side in (ours, theirs)]
        return None not in natural and _equal(*natural)
    return False


def _as_fractions(reference: Any, given: Any, is_percentage: bool) -> tuple[Any, Any]:
    """0.5 is 50 %, whichever of the two states it."""
    hundredth = sympy.Rational(1, 100)
    try:
        return (reference * hundredth, given) if is_percentage else (reference, given * hundredth)
    except TypeError:
        return reference, given


def _equal(reference: Any, given: Any) -> bool:
    if not _is_sound(given, reference):
        return False
    if isinstance(reference, sympy.MatrixBase) and isinstance(given, sympy.MatrixBase):
        pairs = zip(reference.flat(), given.flat(), strict=False)
        return reference.shape == given.shape and all(_equal(ours, theirs) for ours, theirs in pairs)
    exact = _exact_number(reference), _exact_number(given)
    if None not in exact:
        return bool(exact[0] == exact[1])
    agree = bool(verify(reference, given, timeout_seconds=None, allow_set_relation_comp=True))
    error = _relative_error(reference, given)
    return agree if error is None else error <= _EXACT or (agree and error <= _MAX_RELATIVE_ERROR)


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


def _is_sound(given: Any, reference: Any) -> bool:
    """Whether a chain of equations is a statement about its last part: `9 = 5` is not one about 5."""
    if isinstance(given, sympy.Eq) and not isinstance(reference, sympy.Eq) and not given.lhs.free_symbols:
        error = _relative_error(given.lhs, given.rhs)
        return error is None or error <= _MAX_RELATIVE_ERROR
    if isinstance(given, sympy.Eq) and not isinstance(reference, sympy.Eq):
        return isinstance(given.lhs, sympy.Symbol | sympy.Function | sympy.Tuple)
    return True


def _relative_error(reference: Any, given: Any) -> float | None:
    """Return the relative error of two numbers; None: one is not a number, or is too large to compare."""
    try:
        pair = [complex(sympy.sympify(value).evalf(30)) for value in (reference, given)]
    except (TypeError, ValueError, OverflowError, AttributeError, ArithmeticError, RecursionError, MemoryError):
        return None
    size = max(map(abs, pair))
    return abs(pair[0] - pair[1]) / size if size else 0.0


def _confuses_order(one: str, other: str) -> bool:
    """Whether one is a pair, a tuple or an interval, and the other is a list or a set: math-verify equates them."""
    return _is_ordered(one) and "," in other and not _is_ordered(other) and not _RELATION.search(other)


def _is_ordered(value: str) -> bool:
    if not value.startswith(_ORDERED) or "," not in value:
        return False
    depth = 0
    brackets = list(re.finditer(r"\\[{}]|[()\[\]]", value))
    for found in brackets:
        depth += 1 if found.group() in ("(", "[", "\\{") else -1
        if depth == 0:  # Else the first bracket does not hold the whole, as of a product or of a union.
            return found is brackets[-1] and found.end() == len(value)
    return False


def _expression(text: str) -> Any | None:
    """A value of SymPy; None: this is not mathematics that the parser can read."""
    boxed = rf"\boxed{{{_IMAGINARY.sub(' i', text)}}}"
    try:
        found = parse(boxed, _WHOLE, fallback_mode="no_fallback", extraction_mode="first_match", parsing_timeout=None)
    except (RecursionError, MemoryError):
        return None
    return found[0] if found else None


def _squeezed(text: str) -> str:
    """Without spaces, and without braces around one character."""
    return re.sub(r"\{(\w)\}", r"\1", re.sub(r"\s", "", text))
