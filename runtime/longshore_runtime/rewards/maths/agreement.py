r"""Answers compared as mathematics: 1/2 equals 0.5, and `#### 1,000` equals \boxed{1000}.

An answer is divided at its commas, brackets and signs (`answer_structure`), and compared part by part: parts are words,
choices, or quantities, whose values are compared in `answer_values`.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

from longshore_runtime.rewards.maths.answer_notation import Quantity, as_words, quantity, tidied
from longshore_runtime.rewards.maths.answer_structure import (
    Statement,
    bracketed,
    interval,
    is_name,
    is_set,
    listed,
    statement,
)
from longshore_runtime.rewards.maths.answer_values import (
    differences_agree,
    expressions_agree,
    is_formula,
    is_number,
    is_opaque,
    is_rounded,
)
from longshore_runtime.rewards.maths.final_answers import answer_of_cut, begins_with_words, final_answer
from longshore_runtime.rewards.maths.references import MAX_CHARACTERS, answer_of_reference, unreadable_reference

_CHOICE: Final = re.compile(r"^\(?([A-J])(?:\)|[.:](?=\s)|(?=$))")
_OTHER_CHOICE: Final = re.compile(r"\(([A-J])\)|(?<!\w)([A-J])[.:](?=\s)")


def answers_agree(response: str, answer: str, *, prompt: str = "", is_cut: bool = False) -> bool:
    """Return whether the final answer of a response equals the reference; a response without an answer does not.

    `prompt` may have begun the thinking of a response that `is_cut`.

    The caller limits the time: math-verify's own limit is an alarm signal, which works in a main thread only.

    Raises:
        ValueError: the reference cannot be read.
    """
    if reason := unreadable_reference(answer):
        raise ValueError(reason)
    reference = _tidied_reference(answer)
    in_words = as_words(reference) is not None or begins_with_words(reference)
    given = answer_of_cut(prompt, response, in_words=in_words) if is_cut else final_answer(response, in_words=in_words)
    if given is None or len(given) > MAX_CHARACTERS:
        return False
    return _agree(reference, tidied(given))


@lru_cache(maxsize=1_024)
def _tidied_reference(answer: str) -> str:
    return tidied(answer_of_reference(answer))


def _agree(reference: str, given: str) -> bool:
    """Return whether two answers, or two parts of answers, say the same."""
    if _squeezed(reference) == _squeezed(given):
        return True
    if (words := (as_words(reference), as_words(given))) != (None, None):
        return _words_agree(reference, given, *words)
    if (choice := _CHOICE.match(reference)) and choice.end() == len(reference):
        return _chosen(given) == choice.group(1)
    ours, theirs = listed(reference), listed(given)
    if len(ours) == len(theirs) == 1:
        return _items_agree(ours[0], theirs[0])
    if _lists_agree(ours, theirs, are_sets=is_set(reference) and is_set(given)):
        return True
    # A list may be the value of one statement, as in `S = {1, 2}`.
    is_value = min(len(ours), len(theirs)) == 1 and (statement(reference) is None) != (statement(given) is None)
    return is_value and _items_agree(reference, given)


def _words_agree(reference: str, given: str, our_words: str | None, their_words: str | None) -> bool:
    ours = our_words or _squeezed(reference).casefold()
    theirs = their_words or _squeezed(given).casefold()
    if ours.strip("()") == theirs.strip("()"):
        return True
    choice = _CHOICE.match(ours.upper())
    return choice is not None and choice.end() == len(ours) and _chosen(given) == choice.group(1)


def _chosen(text: str) -> str | None:
    """Return the letter of a multiple choice with which an answer begins; None: none, or several."""
    plain = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text).strip()
    choice = _CHOICE.match(plain)
    others = {"".join(found) for found in _OTHER_CHOICE.findall(plain)}
    return choice.group(1) if choice and others <= {choice.group(1)} else None


def _lists_agree(ours: Sequence[str], theirs: Sequence[str], *, are_sets: bool) -> bool:
    """Return whether two lists have equal items, in any order and equally often; repetition in sets means nothing.

    Values of different variables are coordinates: `x = 1, y = 2` may be written as `(1, 2)` or `1, 2`, not as `2, 1`.
    """
    coordinates = _coordinates(ours), _coordinates(theirs)
    values = [found or _elements(items) for found, items in zip(coordinates, (ours, theirs), strict=True)]
    if coordinates.count(None) == 1 and not any(statement(value) for value in values[coordinates[0] is not None]):
        return _pairs_agree(*values)
    rest = list(theirs)
    for item in ours:
        found = next((other for other in rest if _agree(item, other)), None)
        if found is None and not (are_sets and any(_agree(item, other) for other in theirs)):
            return False
        if found is not None:
            rest.remove(found)
    return not rest or (are_sets and all(any(_agree(item, other) for item in ours) for other in rest))


def _coordinates(items: Sequence[str]) -> list[str] | None:
    """Return the values of different variables, in the order of their names; None: the items are something else."""
    values = {}
    for found in map(statement, items):
        if found is None or not found.is_equation or not (names := _labels(found)):
            return None
        values[names[0]] = _values(found)[-1]
    return [values[name] for name in sorted(values)] if 1 < len(values) == len(items) else None


def _elements(items: Sequence[str]) -> Sequence[str]:
    """Return the elements of a point, which may stand after `(x, y) =`; other items as they are."""
    if len(items) > 1:
        return items
    found = statement(items[0])
    point = bracketed(_values(found)[-1] if found and _values(found) else items[0])
    return point.elements if point is not None and (point.opening, point.closing) == ("(", ")") else items


def _pairs_agree(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    return len(ours) == len(theirs) and all(map(_agree, ours, theirs))


def _items_agree(reference: str, given: str) -> bool:
    ours, theirs = statement(reference), statement(given)
    if ours is not None and theirs is not None:
        return _statements_agree(ours, theirs)
    if ours is not None:
        return any(_agree(value, given) for value in _values(ours))
    if theirs is not None:
        return _is_consistent(theirs) and any(_agree(reference, value) for value in _values(theirs))
    return _quantities_agree(quantity(reference), quantity(given))


def _quantities_agree(ours: Quantity, theirs: Quantity) -> bool:
    if ours.unit is not None and theirs.unit is not None and ours.unit != theirs.unit:
        return False
    if _squeezed(ours.value) == _squeezed(theirs.value):
        return True
    first, second = bracketed(ours.value), bracketed(theirs.value)
    if first is not None and second is not None:
        is_same_kind = (first.opening, first.closing) == (second.opening, second.closing)
        return is_same_kind and _pairs_agree(first.elements, second.elements)
    if is_opaque(ours.value) or is_opaque(theirs.value):
        return False
    return expressions_agree(ours.value, theirs.value, percent=(ours.unit == "percent", theirs.unit == "percent"))


def _labels(found: Statement) -> list[str]:
    """Return the sides of an equation that name what the others are: none if it does not begin or end with a name."""
    labels = [side for side in found.sides if _is_label(side)]
    return labels if _is_label(found.sides[0]) or _is_label(found.sides[-1]) else []


def _is_label(side: str) -> bool:
    if is_name(side):
        return True
    value = quantity(side).value
    return not _is_compound(value) and (is_opaque(value) or not (is_number(value) or is_formula(value)))


def _is_number(side: str) -> bool:
    value = quantity(side).value
    return not (is_name(side) or _is_compound(value) or is_opaque(value)) and is_number(value)


def _is_compound(value: str) -> bool:
    return len(listed(value)) > 1 or bracketed(value) is not None


def _values(found: Statement) -> tuple[str, ...]:
    """Return what an answer without a sign may be to say the same as a statement, each of them alone.

    That is 5 for `f(2) = 5`, either side of `1/2 = 0.5`, 7 for `a + b = 3 + 4 = 7`, an interval for an inequality, and
    nothing for `2x + 1 = 5`.
    """
    if found.is_equation:
        labels = _labels(found)
        numbers = tuple(side for side in found.sides if _is_number(side))
        if numbers and (labels or len(found.sides) > 2 or len(numbers) == 2):
            return numbers
        if labels:
            return tuple(side for side in found.sides if side not in labels) or found.sides[-1:]
        return found.sides[-1:] if len(found.sides) > 2 else ()
    return _range(found)[1:]


def _range(found: Statement) -> tuple[str, ...]:
    """Return a variable and the set that a statement says it is in; empty: it says something else."""
    name = found.sides[0]
    if found.signs == ("∈",):
        return (name, found.sides[1])
    if found.signs == ("≠",) and is_name(name):
        return (name, rf"(-\infty, {found.sides[1]}) \cup ({found.sides[1]}, \infty)")
    bounds = interval(found)
    return () if bounds is None else (bounds[0], bounds[1].text)


def _is_consistent(found: Statement) -> bool:
    """Return whether the values of a chain of equations are equal: `9 = 5` says nothing about 5."""
    values = _values(found)
    return all(_sides_agree(one, other) or _sides_agree(other, one) for one, other in pairwise(values))


def _sides_agree(reference: str, given: str) -> bool:
    """Return whether a value is the other one, also rounded or in another unit."""
    ours, theirs = quantity(reference), quantity(given)
    is_converted = None not in (ours.unit, theirs.unit) and ours.unit != theirs.unit
    return is_converted or _agree(reference, given) or is_rounded(ours.value, theirs.value)


def _statements_agree(ours: Statement, theirs: Statement) -> bool:
    if ours.is_equation and theirs.is_equation:
        return _equations_agree(ours, theirs)
    ranges = _range(ours), _range(theirs)
    if all(ranges):
        return _names_agree(ranges[0][0], ranges[1][0]) and _agree(ranges[0][1], ranges[1][1])
    ours, theirs = _oriented(ours), _oriented(theirs)
    if ours.signs != theirs.signs:
        return False
    if _pairs_agree(ours.sides, theirs.sides):
        return True
    return len(ours.sides) == 2 and differences_agree(ours.sides, theirs.sides, is_directed=ours.signs != ("≠",))


def _oriented(found: Statement) -> Statement:
    return found.mirrored if found.signs[0] in (">", "≥") else found


def _equations_agree(ours: Statement, theirs: Statement) -> bool:
    """Return whether two equations name the same value, or relate the same letters in the same way."""
    labels = _labels(ours), _labels(theirs)
    values = _values(ours), _values(theirs)
    is_same_name = not all(labels) or any(_names_agree(one, other) for one in labels[0] for other in labels[1])
    if is_same_name and any(_agree(one, other) for one in values[0] for other in values[1]):
        return _is_consistent(theirs) and all(any(_sides_agree(one, other) for one in values[0]) for other in values[1])
    is_closed = [bool(sides) and all(map(_is_number, sides)) for sides in values]
    if all(is_closed):
        return False
    if _pairs_agree(ours.sides, theirs.sides) or _pairs_agree(ours.sides, theirs.mirrored.sides):
        return True
    if any(is_closed) or {len(ours.sides), len(theirs.sides)} != {2}:
        return False
    return differences_agree(ours.sides, theirs.sides, is_directed=False)


def _names_agree(ours: str, theirs: str) -> bool:
    """Return whether two names are the same, in which `A` and `a` are one letter."""
    return _squeezed(ours).casefold() == _squeezed(theirs).casefold()


def _squeezed(text: str) -> str:
    """Return the text without spaces, and without braces around one character."""
    return re.sub(r"\{(\w)\}", r"\1", re.sub(r"\s", "", text))
