"""Notation of final answers: removes spelling without meaning, and separates units from values."""

import re
from dataclasses import dataclass
from typing import Final

_FULL_WIDTH: Final = {0xFF00 + code: chr(0x20 + code) for code in range(1, 0x5E)}
"""Digits, letters and signs as wide as a Chinese character. The wide tilde stays: it is no space, as it is in LaTeX."""
_TO_ASCII: Final = str.maketrans(_FULL_WIDTH | {"，": ", ", "、": ", ", "。": ".", "｛": "\\{", "｝": "\\}"})
"""Table that writes wide characters in ASCII.

Wide commas divide lists, not thousands, and wide braces are those of sets, not those of LaTeX.
"""
_SPACES: Final = re.compile(r"(?<!\\)\\[,;: ]|\\quad\b|\\qquad\b|~|\\hspace\{[^{}]*\}|\s")
_NOTHING: Final = re.compile(r"\\!|\\displaystyle\b|\\(?:left|right)(?![A-Za-z])\.?|\\(?:limits|nolimits)\b")
_LINES: Final = re.compile(
    r"\\(?:begin|end)\s*\{(?:align|aligned|gather|gathered|split|eqnarray|equation|cases)\*?\}|\\\\|&"
)
"""Signs that divide a chain or a list of equations into lines; they divide elements of a matrix, too."""
_TEXT_COMMAND: Final = re.compile(r"\\(?:mbox|textbf|textrm|textit|textnormal|textsf|mathrm|mathsf|hbox)\s*\{")
_TEXT: Final = re.compile(r"\\text\s*\{([^{}]*)\}")
_WRAPPERS: Final = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
_TIGHT_COMMA: Final = re.compile(r"(?<=\d)(?<!\b0)(?:\{,\}|, ?\\!) ?(?:\\! ?)*(?=\d{3}(?!\d))")
r"""A comma as LaTeX writes it within a number: `1{,}000`, `1,\!000`."""
_DECIMAL_COMMA: Final = re.compile(r"(?<=\d)\{,\}(?=\d)")
_THOUSANDS: Final = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
_SPACED_THOUSANDS: Final = re.compile(r"(?<![\d.,] )(?<![\d.,])\d{1,3}(?: \d{3})+(?![\d ]|,\d)")
_SCIENTIFIC: Final = re.compile(r"(?<![\w}])(\d+(?:\.\d+)?|\.\d+)[eE]([-+]?\d+)(?![\w.])")
_MIXED: Final = re.compile(r"^([-+]?\d+) (\d+)/(\d+)$")
_POWER: Final = r"(?:\s*\^\s*\{?\s*(?P<power>[23])\s*\}?)?"
_UNIT_IN_TEXT: Final = re.compile(
    rf"^(?P<value>.*[\d}})\]a-zA-Z%])\s*\\text\s*\{{(?P<unit>[^{{}}]*)\}}{_POWER}$", re.DOTALL
)
_CJK: Final = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_UNIT_IN_WORDS: Final = re.compile(
    rf"^(?P<value>[^a-zA-Z{_CJK}]*[\d)}}])\s*(?P<unit>[a-zA-Z{_CJK}][a-zA-Z{_CJK} ./]*?|\\?\$|€|£|¥){_POWER}$"
)
_DEGREES: Final = re.compile(
    r"^(?P<value>.*?[\d}\w])\s*(?:\^\s*\{?\s*\\circ\s*\}?|°|\\degree)\s*(?P<scale>[CF]?)$", re.DOTALL
)
_PERCENT: Final = re.compile(r"^(?P<value>.*?\S)\s*\\?%$", re.DOTALL)
_CURRENCY: Final = re.compile(
    r"^(?P<sign>[-+]?)\s*(?P<unit>\\?\$|€|£|¥|\\euro\b|\\pounds\b)\s*(?P<value>.*\S)$", re.DOTALL
)
_CONNECTIVES: Final = frozenset({"and", "or", "if", "for", "where", "when", "with"})

_UNITS: Final = {
    variant: unit
    for unit, variants in {
        "percent": "percent pct percentage",
        "degree": "degree deg",
        "radian": "radian rad",
        "mm": "mm millimeter millimetre",
        "cm": "cm centimeter centimetre",
        "m": "m meter metre",
        "km": "km kilometer kilometre",
        "in": "in inch inche",
        "ft": "ft foot feet",
        "yd": "yd yard",
        "mi": "mi mile",
        "s": "s sec second",
        "min": "min minute",
        "h": "h hr hour",
        "day": "day",
        "week": "week",
        "month": "month",
        "year": "year yr",
        "mg": "mg milligram",
        "g": "g gram",
        "kg": "kg kilogram",
        "oz": "oz ounce",
        "lb": "lb pound",
        "ton": "ton tonne",
        "ml": "ml milliliter millilitre",
        "l": "l liter litre",
        "gal": "gal gallon",
        "cent": "cent",
        "dollar": "dollar $ usd",
        "euro": "euro € eur",
        "pound sterling": "£",
        "yen": "yen ¥",
        "am": "am",
        "pm": "pm",
        "mi/h": "mph",
        "km/h": "kmh kph km/h",
        "m/s": "m/s",
    }.items()
    for variant in variants.split()
}
_POWERS: Final = {"square": "2", "sq": "2", "squared": "2", "cubic": "3", "cubed": "3"}


@dataclass(frozen=True)
class Quantity:
    """A value with what it is counted in."""

    value: str
    """Value as tidied LaTeX."""
    unit: str | None = None
    """Canonical name, with its power, of the unit; None: there is none, or a word such as `apples`."""


def tidied(answer: str) -> str:
    """Return the same answer without delimiters, spacing, synonyms of commands and thousands separators."""
    text = answer.translate(_TO_ASCII).replace("−", "-").replace("\\$", "\uff04")
    text = _NOTHING.sub("", _DECIMAL_COMMA.sub(".", _TIGHT_COMMA.sub("", text)).replace("{,}", ","))
    if "matrix}" not in text and "array}" not in text:
        text = _LINES.sub(" ", text)
    text = _TEXT_COMMAND.sub(r"\\text{", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = text.replace("\\varnothing", "\\emptyset").replace("∅", "\\emptyset")
    text = _SPACES.sub(" ", text).strip()
    unwrapped = _unwrapped(_without_full_stop(text))
    spaced = " ".join(unwrapped.replace("\uff04", "\\$").split())
    plain = re.sub(r"(?<=\d) ?, (?=\d{3}\b)", ", ", spaced)
    return _SCIENTIFIC.sub(r"\1\\times 10^{\2}", _without_thousands(plain))


def quantity(tidy: str) -> Quantity:
    """Return the value and unit of a tidied answer."""
    if found := _CURRENCY.match(tidy):
        return Quantity(found["sign"] + found["value"], _UNITS.get(found["unit"].lstrip("\\"), "currency"))
    if found := _PERCENT.match(tidy):
        return Quantity(found["value"], "percent")
    if (found := _DEGREES.match(tidy)) and _is_plain(found["value"]):
        return Quantity(found["value"], f"degree {found['scale']}".strip())
    found = _UNIT_IN_TEXT.match(tidy)
    if found and not _CONNECTIVES & set(found["unit"].lower().split()) and "\\text" not in found["value"]:
        return Quantity(found["value"].strip(), _unit(found["unit"], found["power"]))
    if (found := _UNIT_IN_WORDS.match(tidy)) and _is_word(found["unit"]):
        return Quantity(found["value"].strip(), _unit(found["unit"], found["power"]))
    if found := _MIXED.match(tidy):
        return Quantity(rf"{found[1]}\frac{{{found[2]}}}{{{found[3]}}}")
    return Quantity(tidy)


def as_words(tidy: str) -> str | None:
    """Return an answer that is text, in lower case without spaces and full stops, or None if it is mathematics."""
    inner = _TEXT.sub(r"\1", tidy)
    has_text = inner != tidy
    rest = _TEXT.sub("", tidy)
    neighbour = r"[A-Za-z\\]" if ":" in rest else r"[A-Za-z0-9\\]"  # A time of day has its digits outside.
    if has_text and re.search(r"[A-Za-z]", inner) and not re.search(neighbour, rest):
        return _folded(inner)
    words = re.findall(r"[A-Za-z]+", tidy)
    is_prose = re.fullmatch(r"[A-Za-z][A-Za-z ,.'’!-]*", tidy) is not None
    if is_prose and any(len(word) >= 3 or word.lower() == "no" for word in words):
        return _folded(tidy)
    return None


def _unwrapped(text: str) -> str:
    for start, end in _WRAPPERS:
        inner = text[len(start) : -len(end)]
        if len(text) > len(start) + len(end) and text.startswith(start) and text.endswith(end) and start not in inner:
            return _unwrapped(_without_full_stop(inner))
    if text.startswith("**") and text.endswith("**") and len(text) > 4:
        return _unwrapped(_without_full_stop(text[2:-2]))
    return text


def _without_full_stop(text: str) -> str:
    """Remove punctuation around an answer, but no point with which a decimal begins."""
    return re.sub(r"^(?:[ ,;]|\.(?!\d))+", "", text).rstrip(" .,;")


def _without_thousands(text: str) -> str:
    """Remove commas between groups of three digits, but not in brackets, where they divide coordinates and elements."""
    depth, parts = 0, []
    for part in re.split(r"([()\[\]]|\\[{}])", text):
        if part in ("(", "[", "\\{"):
            depth += 1
        elif part in (")", "]", "\\}"):
            depth -= 1
        elif depth == 0:
            part = _THOUSANDS.sub(lambda found: found.group().replace(",", ""), part)
            part = _SPACED_THOUSANDS.sub(lambda found: found.group().replace(" ", ""), part)
        parts.append(part)
    return "".join(parts)


def _unit(words: str, power: str | None) -> str | None:
    found = []
    for word in words.lower().lstrip("\\").replace("a.m", "am").replace("p.m", "pm").replace(" per ", "/").split():
        name = word.strip(".,")
        if name in _POWERS:
            power = _POWERS[name]
        else:
            found.append(name)
    singular = "/".join(_singular(part) for part in "".join(found).split("/"))
    unit = _UNITS.get(singular) or (
        "/".join(_UNITS.get(part, "") for part in singular.split("/")) if "/" in singular else None
    )
    if not unit or "" in unit.split("/"):
        return None
    return f"{unit}^{power}" if power else unit


def _singular(word: str) -> str:
    return word if word in _UNITS else word.removesuffix("s")


def _is_plain(value: str) -> bool:
    """Return whether no letter stands in it but those of fractions, roots and pi: what follows then is no variable."""
    return re.search(r"[A-Za-z]", re.sub(r"\\(?:frac|sqrt|pi|times|cdot)", "", value)) is None


def _is_word(unit: str) -> bool:
    """Return whether this is a word or a sign of currency, and no product of variables."""
    return unit.endswith("$") or all(
        len(word) >= 3 or not word.isascii() or (len(word) == 2 and _singular(word.lower().strip(".")) in _UNITS)
        for word in unit.split()
    )


def _folded(words: str) -> str:
    return re.sub(r"[\s.,'’!\"]", "", words).casefold()
