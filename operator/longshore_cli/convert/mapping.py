"""How keys of another system become fields of an RLJob. The conversion and the tables of the pages follow from it."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from longshore_cli.convert import hydra

Fields = dict[str, Any]
"""Paths in an RLJob, as `spec.algorithm.steps`, and their values; None leaves a field out."""
_REFERENCE: Final = re.compile(r"\$\{(?P<select>oc\.select:\s*)?(?P<key>[\w.]+)(,\s*(?P<default>[^{}]*))?\}")
"""A value of OmegaConf that is that of another key."""
_BEGIN: Final = "${"


class Refused(Exception):
    """No RLJob does what a key asks for."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


class Missing(Refused):
    """A job needs the value of a key that is unset."""


@dataclass(frozen=True)
class ForeignSettings:
    """Keys and values of a configuration. What it leaves out has the other system's default."""

    given: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key, with what it refers to; None where it is neither given nor has a default.

        Raises:
            Refused: what it refers to is not known, or it is infinite.
        """
        return self._resolved(key, self._stored(key), (key,))

    def _resolved(self, key: str, value: Any, seen: tuple[str, ...]) -> Any:
        if isinstance(value, list):
            return [self._resolved(key, one, seen) for one in value]
        if isinstance(value, float) and not math.isfinite(value):
            raise Refused(key, f"{value} is no finite number: write one")
        if not isinstance(value, str) or _BEGIN not in value:
            return value
        if whole := _REFERENCE.fullmatch(value):
            return self._referred(key, whole, seen)
        text = _REFERENCE.sub(lambda one: _written(self._referred(key, one, seen)), value)
        if text == value:
            raise Refused(key, _unresolved(value))
        return self._resolved(key, text, seen)  # A reference may stand in the default of another.

    def _referred(self, key: str, reference: re.Match[str], seen: tuple[str, ...]) -> Any:
        name, default = reference["key"], reference["default"]
        is_known = name not in seen and (name in self.given or name in self.defaults)
        if not is_known and (not reference["select"] or name.startswith(".")):
            raise Refused(key, _unresolved(reference[0]))
        value = self._resolved(key, self._stored(name), (*seen, name)) if is_known else None
        return _literal(default) if value is None and default else value

    def _stored(self, key: str) -> Any:
        return self.given.get(key, self.defaults.get(key))

    def plain(self, key: str) -> Any:
        """Return the value of a key, with what it refers to as far as that is known."""
        try:
            return self[key]
        except Refused:
            return self._stored(key)

    def below(self, key: str) -> dict[str, Any]:
        """Return the mapping that was given under a key, nested as it was."""
        inner: dict[str, Any] = {}
        for path in self.given:
            if path.startswith(f"{key}."):
                _put(inner, path.removeprefix(f"{key}.").split("."), self[path])
        return inner

    def mapping(self, key: str) -> dict[str, Any]:
        """Return the value of a key that is a mapping or unset."""
        inner, single = self.below(key), self[key]
        if not inner and single is not None:
            raise Refused(key, f"{single!r} is no mapping: put quotes around {{…}}, or a shell splits it at its commas")
        return inner

    def number(self, key: str) -> float | None:
        """Return the value of a key that is a number or unset."""
        value = self[key]
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise Refused(key, f"{value!r} is no number")
        return value

    def count(self, key: str, least: int = 1) -> int | None:
        """Return the value of a key that is a whole number or unset; below `least` is unset, too."""
        value = self.number(key)
        if value is None or value < least:
            return None
        if value != int(value):
            raise Refused(key, f"{value!r} is no whole number")
        return int(value)

    def wanted(self, key: str, why: str) -> int:
        """Return the value of a key that must be a positive whole number."""
        value = self.count(key)
        if value is None:
            raise Missing(key, why) if self[key] is None else Refused(key, why)
        return value

    def text(self, key: str) -> str | None:
        """Return the value of a key that is a text or unset."""
        value = self[key]
        if value is not None and not isinstance(value, str):
            raise Refused(key, f"{value!r} is no text")
        return value or None

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the value of a key that is a text or a list of them."""
        value = self[key]
        values = value if isinstance(value, list | tuple) else [value]
        if not all(isinstance(one, str) for one in values if one is not None):
            raise Refused(key, f"{value!r} is neither a text nor a list of texts")
        return tuple(one for one in values if one)

    def flag(self, key: str) -> bool:
        """Return the value of a key that is true or false; unset is false."""
        value = self[key]
        if value not in (None, True, False):
            raise Refused(key, f"{value!r} is neither true nor false")
        return bool(value)


def _put(mapping: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Put a value into nested mappings; one takes the place of a single value that was there."""
    first, *rest = path
    if not rest:
        mapping[first] = value
        return
    if not isinstance(mapping.get(first), dict):
        mapping[first] = {}
    _put(mapping[first], rest, value)


def _written(value: Any) -> str:
    """Return a value as it stands in a text, which may be the default of a reference."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _literal(text: str) -> Any:
    try:
        return hydra.read(text)
    except hydra.Unreadable:
        return text


def _unresolved(reference: str) -> str:
    return f"{reference!r} is no number or text until ${{…}} is replaced, which is not done here: write the value"


@dataclass(frozen=True)
class EntryOutcome:
    """What comes of an entry."""

    fields: Fields = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    """Keys that the fields do not express, and why."""
    to_do: tuple[str, ...] = ()
    """What is left for a person."""
    beside_learning: frozenset[str] = frozenset()
    """Keys among those lost that have no part in what is learned."""


@dataclass(frozen=True)
class MappingEntry:
    """Keys that decide fields together."""

    keys: tuple[str, ...]
    fields: tuple[str, ...]
    how: str
    """For the table of the page."""
    convert: Callable[[ForeignSettings], EntryOutcome]
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def matches(self, key: str) -> bool:
        """Return whether it decides about a key."""
        return any(fnmatchcase(key, pattern) for pattern in self.keys)


@dataclass(frozen=True)
class Ignored:
    """Keys without a field."""

    keys: tuple[str, ...]
    reason: str
    """Why nothing is lost, or what Longshore does instead."""
    neutral: tuple[Any, ...] = ()
    """Values besides null with which Longshore does the same."""
    default: Any = None
    """Default of the other system, where it is worth a word although nobody set it."""
    matters: bool = True
    """Whether it may change what is learned, and not only how that is computed and recorded."""

    def matches(self, key: str) -> bool:
        """Return whether it is about a key."""
        return any(fnmatchcase(key, pattern) for pattern in self.keys)


@dataclass(frozen=True)
class System:
    """Another system."""

    name: str
    version: str
    """Whose keys these are."""
    entries: Sequence[MappingEntry]
    ignored: Sequence[Ignored]
    always: Mapping[str, Any] = field(default_factory=dict)
    """Fields that follow from the system and not from a key."""
    half_switched: frozenset[str] = frozenset()
    """Sections that hold more than their `enable` switches off."""

    def defaults(self) -> dict[str, Any]:
        """Return the defaults of the keys that decide fields, by key."""
        return {key: value for one in self.entries for key, value in one.defaults.items()}

    def knows(self, key: str) -> bool:
        """Return whether it has a key."""
        return any(one.matches(key) for one in self.entries) or any(one.matches(key) for one in self.ignored)

    def known_keys(self) -> Iterator[str]:
        """Yield all keys and patterns."""
        yield from (key for one in self.entries for key in one.keys)
        yield from (key for one in self.ignored for key in one.keys)


def direct(key: str, path: str, how: str = "", *, default: Any = None) -> MappingEntry:
    """Return a key whose value is that of a field; null leaves the field out."""

    def convert(settings: ForeignSettings) -> EntryOutcome:
        value = settings[key]
        return EntryOutcome({} if value is None else {path: value})

    return MappingEntry((key,), (path,), how, convert, {} if default is None else {key: default})


def entry(keys: Iterable[str], fields: Iterable[str], how: str,
          **defaults: Any) -> Callable[[Callable[[ForeignSettings], EntryOutcome]], MappingEntry]:  # fmt: skip
    """Register a function that converts these keys. Names of defaults have `__` for dots."""
    known = {key.replace("__", "."): value for key, value in defaults.items()}
    return lambda convert: MappingEntry(tuple(keys), tuple(fields), how, convert, known)
