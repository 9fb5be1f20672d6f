"""Python values as JSON and back, without loss of what JSON does not know: tuples, sets, keys that are no strings.

Standard library only, and used on both sides of the sandbox: nothing that is decoded is more than data.
"""

import json
from typing import Any

_SEQUENCES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def dumps(value: Any) -> str:
    """Return a literal as JSON.

    Raises TypeError for what is no literal, and ValueError or RecursionError for what JSON cannot hold.
    """
    return json.dumps(_tagged(value))


def loads(text: str | bytes) -> Any:
    """Return the literal of a JSON text; raises ValueError or RecursionError for what `dumps` did not write."""
    try:
        return _value(json.loads(text))
    except (TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError("not written by dumps") from error


def _tagged(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    for name, kind in _SEQUENCES.items():
        if isinstance(value, kind):
            return {name: [_tagged(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_tagged(key), _tagged(item)] for key, item in value.items()]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    raise TypeError(f"{type(value).__name__} is no literal")


def _value(tagged: Any) -> Any:
    if not isinstance(tagged, dict):
        return tagged
    ((name, content),) = tagged.items()
    if name in _SEQUENCES:
        return _SEQUENCES[name](_value(item) for item in content)
    match name:
        case "dict":
            return {_value(key): _value(item) for key, item in content}
        case "complex":
            return complex(*content)
        case "bytes":
            return bytes.fromhex(content)
    raise ValueError(f"{name!r} is no kind of literal")
