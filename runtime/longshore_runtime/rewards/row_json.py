"""Rows of data sets as JSON, with what JSON or its writer does not know: integers of any size, dates, arrays."""

from typing import Any, Final

import orjson

_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 64) - 1
"""Integers from the one to the other are written by orjson."""


def to_json(value: Any) -> bytes:
    """Write a value in one line; what JSON does not know becomes a text.

    Raises:
        TypeError: it is nested too deeply, or has keys that are no plain values.
    """
    try:
        return orjson.dumps(value, str, _OPTIONS)
    except TypeError:
        try:
            return orjson.dumps(_with_large_numbers(value), str, _OPTIONS)
        except RecursionError as error:
            raise TypeError("it is nested too deeply") from error


def _with_large_numbers(value: Any) -> Any:
    """Return the value with integers that need more than 64 bits as they are written."""
    match value:
        case dict():
            return {key: _with_large_numbers(one) for key, one in value.items()}
        case list() | tuple():
            return [_with_large_numbers(one) for one in value]
        case int() if not _LEAST <= value <= _MOST:
            return orjson.Fragment(str(value))
    return value


def is_deeper(value: object, num_levels: int) -> bool:
    """Return whether a JSON value has more levels of objects and arrays."""
    level = [value]
    for _ in range(num_levels):
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [one for values in inner for one in values]
    return bool(level)
