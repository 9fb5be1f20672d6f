r"""The structure of a final answer: items of a list, elements in brackets, sides of an equation or inequality.

`x = 2 \text{ or } x = 3` is a list of two statements with two sides each. All functions take tidied LaTeX, look only at
what no bracket holds, and return LaTeX.
"""

import re
from dataclasses import dataclass
from typing import Final

_BRACKET: Final = re.compile(
    r"(?P<opening>\\begin\s*\{[^{}]*\}|\\\{|\\l(?:angle|floor|ceil)(?![A-Za-z])|[(\[{])"
    r"|(?P<closing>\\end\s*\{[^{}]*\}|\\\}|\\r(?:angle|floor|ceil)(?![A-Za-z])|[)\]}])|\\\\|\\."
)
_SIGNS: Final = {
    sign: name
    for name, variants in {
        "=": r"= := == \colon=",
        "≈": r"≈ \approx \simeq \doteq",
        "≡": r"≡ \equiv",
        "≠": r"≠ \neq \ne \not= !=",
        "<": r"< \lt",
        ">": r"> \gt",
        "≤": r"≤ <= ⩽ \leqslant \leq \le",
        "≥": r"≥ >= ⩾ \geqslant \geq \ge",
        "∈": r"∈ \in",
        "∼": r"\sim",
        "≅": r"\cong",
        "∝": r"\propto",
        "⊆": r"\subseteq \subset",
        "→": r"\to \rightarrow \mapsto",
    }.items()
    for sign in variants.split()
}
_SIGN: Final = re.compile(
    "|".join(
        re.escape(sign) + ("(?![A-Za-z])" if sign[-1].isalpha() and sign[0] == "\\" else "")
        for sign in sorted(_SIGNS, key=len, reverse=True)
    )
)
EQUALITY: Final = frozenset("=≈≡")
_UPWARD: Final = frozenset("<≤")
_MIRRORED: Final = {"<": ">", "≤": "≥", ">": "<", "≥": "≤"}
_SEPARATOR: Final = re.compile(
    r"[,;]|\\text\s*\{\s*,?\s*(?:and|or)\s*\}|\\l(?:or|and)(?![A-Za-z])|(?<=[\s,])(?:and|or)(?=\s)"
)
_UNION: Final = re.compile(r"\\cup(?![A-Za-z])|∪")
_REALS: Final = frozenset({r"\mathbb{R}", r"\mathbb R", r"\R", "ℝ"})
_LETTER: Final = (
    r"(?:[A-Za-z]|\\(?:alpha|beta|[gG]amma|[dD]elta|(?:var)?epsilon|zeta|eta|(?:var)?[tT]heta|iota|kappa|[lL]ambda|mu|nu"
    r"|[xX]i|(?:var)?rho|[sS]igma|tau|[uU]psilon|(?:var)?[pP]hi|chi|[pP]si|[oO]mega)(?![A-Za-z]))"
)
_NAME: Final = rf"{_LETTER}(?:\s*_\s*(?:\w|\{{[^{{}}]*\}}))?'*(?:\s*\([^()=<>]*\))?"
_NEXT_EQUATION: Final = re.compile(rf"\s+(?={_NAME}\s*(?:=|\\approx\b))")
_UNFINISHED: Final = re.compile(r"(?:[-+*/^_=<>≤≥≈(,]|\\[a-zA-Z]+)\s*$")
_PLUS_OR_MINUS: Final = re.compile(r"(?P<pm>\\pm(?![A-Za-z])|±)|\\mp(?![A-Za-z])|∓")


@dataclass(frozen=True)
class Statement:
    """An equation, an inequality or a chain of them."""

    sides: tuple[str, ...]
    signs: tuple[str, ...]
    """Signs between the sides, one fewer than these: `=`, `≈`, `<` and so on, however they were written."""

    @property
    def is_equation(self) -> bool:
        """Whether all its signs say that the sides are equal."""
        return EQUALITY.issuperset(self.signs)

    @property
    def mirrored(self) -> "Statement":
        """Statement that says the same, read from right to left."""
        signs = tuple(_MIRRORED.get(sign, sign) for sign in reversed(self.signs))
        return Statement(tuple(reversed(self.sides)), signs)


@dataclass(frozen=True)
class Bracketed:
    """A pair, a tuple, a point or an interval."""

    opening: str
    elements: tuple[str, ...]
    closing: str

    @property
    def text(self) -> str:
        """The answer as it is written."""
        return f"{self.opening}{', '.join(self.elements)}{self.closing}"


def listed(text: str) -> tuple[str, ...]:
    r"""Return the items of a list, a set or a union; one item: the answer is no list. `\pm` stands for two items."""
    inner = _bare(text) if (elements := _whole_set(text)) is None else elements
    items = [part for piece in _split(inner, _SEPARATOR) for part in _equations(piece)]
    if len(items) == 1 and statement(items[0]) is None:
        items = _split(items[0], _UNION)
    return tuple(signed for item in items for signed in _with_both_signs(item))


def is_set(text: str) -> bool:
    """Return whether an answer is a set in braces, in which repetition means nothing."""
    return _whole_set(text) is not None


def bracketed(text: str) -> Bracketed | None:
    """Return what brackets around the whole answer hold, if that is several elements; else None."""
    if text in _REALS:
        return Bracketed("(", ("-\\infty", "\\infty"), ")")
    if text[:1] not in ("(", "[") or text[-1:] not in (")", "]") or not _is_enclosed(text):
        return None
    elements = tuple(_split(text[1:-1], re.compile("[,;]")))
    return Bracketed(text[0], elements, text[-1]) if len(elements) > 1 else None


def statement(text: str) -> Statement | None:
    """Return the equation or inequality that an answer is; None: it is none."""
    found = _outside_brackets(text, _SIGN)
    if not found:
        return None
    starts = [0, *(sign.end() for sign in found)]
    ends = [*(sign.start() for sign in found), len(text)]
    sides = tuple(_bare(text[start:end]) for start, end in zip(starts, ends, strict=True))
    return Statement(sides, tuple(_SIGNS[sign.group()] for sign in found)) if all(sides) else None


def interval(found: Statement) -> tuple[str, Bracketed] | None:
    r"""Return the variable of an inequality such as `1 < x \le 3`, and the interval that it is in; else None."""
    if found.signs[0] in _MIRRORED and found.signs[0] not in _UPWARD:
        found = found.mirrored
    if not _UPWARD.issuperset(found.signs):
        return None
    opening, closing = ("(" if sign == "<" else "[" for sign in (found.signs[0], found.signs[-1]))
    closing = {"(": ")", "[": "]"}[closing]
    if len(found.sides) == 3 and is_name(found.sides[1]):
        return found.sides[1], Bracketed(opening, (found.sides[0], found.sides[2]), closing)
    if len(found.sides) == 2 and is_name(found.sides[0]):
        return found.sides[0], Bracketed("(", ("-\\infty", found.sides[1]), closing)
    if len(found.sides) == 2 and is_name(found.sides[1]):
        return found.sides[1], Bracketed(opening, (found.sides[0], "\\infty"), ")")
    return None


def is_name(side: str) -> bool:
    r"""Return whether a side is written as a name: `x`, `a_1`, `f(2)`, `\text{Area}`, `AB`, `(x, y)`."""
    if (pair := bracketed(side)) is not None:
        return all(map(is_name, pair.elements))
    return re.fullmatch(rf"{_NAME}|\\text\s*\{{[^{{}}]*\}}|[A-Z]{{2,4}}|\[[A-Z]{{3,6}}\]", side) is not None


def _split(text: str, separator: re.Pattern[str]) -> list[str]:
    pieces, start = [], 0
    for found in _outside_brackets(text, separator):
        pieces.append(_bare(text[start : found.start()]))
        start = found.end()
    pieces.append(_bare(text[start:]))
    return [piece for piece in pieces if piece] or [text]


def _bare(text: str) -> str:
    """Remove spaces and braces around a part."""
    text = text.strip()
    return _bare(text[1:-1]) if text.startswith("{") and _is_enclosed(text) else text


def _outside_brackets(text: str, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    """Return the matches that no bracket holds: none at all if brackets lack their partners."""
    inside, depth, opened = [], 0, 0
    for found in _BRACKET.finditer(text):
        if found["opening"]:
            opened = found.start() if depth == 0 else opened
            depth += 1
        elif found["closing"]:
            depth -= 1
            if depth == 0:
                inside.append((opened, found.end()))
        if depth < 0:
            return []
    if depth:
        return []
    matches = pattern.finditer(text)
    return [found for found in matches if not any(start < found.start() < end for start, end in inside)]


def _is_enclosed(text: str) -> bool:
    """Return whether the first bracket is closed by the last one."""
    depth = 0
    for found in _BRACKET.finditer(text):
        depth += bool(found["opening"]) - bool(found["closing"])
        if depth == 0:
            return found.end() == len(text)
    return False


def _whole_set(text: str) -> str | None:
    is_whole = text.startswith("\\{") and text.endswith("\\}") and _is_enclosed(text)
    return text[2:-2].strip() if is_whole else None


def _equations(text: str) -> list[str]:
    """Return the equations that only a space separates, as in `x=2 y=3`."""
    pieces, start = [], 0
    for found in _outside_brackets(text, _NEXT_EQUATION):
        piece = text[start : found.start()].strip()
        if _SIGN.search(piece) and not _UNFINISHED.search(piece):
            pieces.append(piece)
            start = found.end()
    return [*pieces, text[start:].strip()]


def _with_both_signs(item: str) -> list[str]:
    if not _PLUS_OR_MINUS.search(item):
        return [item]
    upper = _PLUS_OR_MINUS.sub(lambda found: "+" if found["pm"] else "-", item)
    lower = _PLUS_OR_MINUS.sub(lambda found: "-" if found["pm"] else "+", item)
    return [upper, lower]
