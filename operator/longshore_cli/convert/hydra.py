"""Values of overrides as Hydra reads them: `{k:v,…}`, `[a,b]`, texts with and without quotes, true, null and numbers.

It is more lenient where a value has only one meaning: texts may hold any character, and keys of mappings may be quoted.
"""

import re
from typing import Any, Final

_DIGITS: Final = r"\d(?:_?\d)*"
_UNSIGNED: Final = r"(?:0|[1-9](?:_?\d)*)"
_INT: Final = re.compile(rf"[+-]?{_UNSIGNED}", re.ASCII)
_POINT: Final = rf"(?:{_UNSIGNED}?\.{_DIGITS}|{_UNSIGNED}\.)"
_FLOAT: Final = re.compile(
    rf"[+-]?(?:{_POINT}|(?:{_UNSIGNED}|{_POINT})e[+-]?{_DIGITS}|inf|nan)", re.ASCII | re.IGNORECASE
)
_WORDS: Final = {"true": True, "false": False, "null": None}
_ESCAPED: Final = re.compile(r"\\([\\()\[\]{}:=, \t])")
_REFERENCE: Final = r"\$\{(?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})*\}"
_UNQUOTED: Final = re.compile(rf"""(?:\\.?|{_REFERENCE}|[^\\,\[\]{{}}()'"])+""", re.DOTALL)
"""Text up to the next character that has a meaning; one after a backslash, and a reference `${…}`, are text."""
_KEY: Final = re.compile(r"""(?:\\.?|[^\\:,\[\]{}()'"])+""", re.DOTALL)
_QUOTED: Final = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
_MAX_DEPTH: Final = 100


class Unreadable(ValueError):
    """A value cannot be read for certain; the text says why."""


def read(text: str) -> Any:
    """Return the value that a text stands for; raises Unreadable."""
    reader = _Reader(text.strip(" \t"))
    value = reader.element()
    if reader.comes(","):
        raise Unreadable(f"several values are a sweep of Hydra; put quotes around a text, or write a list [{text}]")
    if reader.rest:
        raise Unreadable(f"{reader.rest!r} follows where it should end; put quotes around a text")
    return value


def primitive(text: str) -> Any:
    """Return what a text without quotes, commas and brackets stands for."""
    text = text.strip(" \t")
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        if _INT.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
    except ValueError:  # Python reads no number of more than 4,300 digits.
        return text
    return _ESCAPED.sub(r"\1", text)


class _Reader:
    def __init__(self, text: str) -> None:
        self.rest = text
        self._depth = 0

    def comes(self, sign: str) -> bool:
        """Take a sign and the spaces around it, if it is what follows."""
        stripped = self.rest.lstrip(" \t")
        if not stripped.startswith(sign):
            return False
        self.rest = stripped.removeprefix(sign).lstrip(" \t")
        return True

    def element(self) -> Any:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise Unreadable("it is nested too deeply")
        value = self._list() if self.comes("[") else self._mapping() if self.comes("{") else self._text()
        self._depth -= 1
        return value

    def _list(self) -> list[Any]:
        values: list[Any] = []
        if self.comes("]"):
            return values
        while True:
            values.append(self.element())
            if self.comes("]"):
                return values
            self._separated("a list", "]")

    def _mapping(self) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        if self.comes("}"):
            return mapping
        while True:
            key = self._key()
            mapping[key] = self.element()
            if self.comes("}"):
                return mapping
            self._separated("a mapping", "}")

    def _separated(self, what: str, end: str) -> None:
        if not self.comes(","):
            found = repr(self.rest) if self.rest else "nothing"
            raise Unreadable(f"{what} needs ',' or '{end}' where {found} follows")

    def _key(self) -> str:
        quoted = self._quoted()
        found = None if quoted is not None else _KEY.match(self.rest)
        key = quoted if found is None else _ESCAPED.sub(r"\1", self._taken(found).strip(" \t"))
        if not key or not self.comes(":"):
            raise Unreadable(f"a mapping is {{key:value,…}}, and {self.rest or 'its end'!r} follows in place of one")
        return key

    def _text(self) -> Any:
        quoted = self._quoted()
        if quoted is not None:
            return quoted
        found = _UNQUOTED.match(self.rest)
        text = self._taken(found) if found else ""
        if not text.strip(" \t"):
            raise Unreadable(f"a value is missing where {self.rest or 'the end'!r} follows")
        if self.rest.startswith("("):
            raise Unreadable(f"{text.strip()}(…) is a function of Hydra; write the value, or put quotes around a text")
        if self.rest.startswith(("'", '"', "[", "{")):
            raise Unreadable(f"{self.rest[0]} stands inside a text; put quotes around all of it")
        return primitive(text)

    def _quoted(self) -> str | None:
        if not self.rest.startswith(("'", '"')):
            return None
        quote, found = self.rest[0], _QUOTED.match(self.rest)
        if found is None:
            raise Unreadable(f"the text that {quote} begins has no end")
        inner = self._taken(found)[1:-1]
        return re.sub(rf"\\+(?={quote}|\Z)", lambda slashes: "\\" * (len(slashes[0]) // 2), inner)

    def _taken(self, found: re.Match[str]) -> str:
        self.rest = self.rest[found.end() :]
        return found[0]
