"""How large a job may be. The operator works for everybody, so what one job can ask of it has bounds."""

from collections.abc import Iterator
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

MAX_PODS: Final = 5_000
"""Pods of a job, of all components together; also as many nodes as Kubernetes supports in a cluster."""
MAX_SPEC_BYTES: Final = 256 << 10
"""A whole spec. It is also a ConfigMap, which holds 1 MiB."""
MAX_FREEFORM_BYTES: Final = 32 << 10
"""One object without a schema, as a pod template: every pod carries it."""
MAX_DEPTH: Final = 32
"""Levels of nesting."""
MAX_COUNT: Final = 2**53
"""Numbers in a status: JSON holds them exactly, and whatever is computed from them stays a number."""
MAX_REPORTED: Final = 16
"""Entries of a list in `status.runtime`: the newest, where there are more."""
MAX_MESSAGE_CHARACTERS: Final = 1024
"""Length limit of one message or reason for people in a status."""
TOO_LARGE: Final = "too_large"
"""Type of the pydantic error for what exceeds a bound."""

_NUMBER_BYTES: Final = 8


def check_freeform(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse an object without a schema that is too large or too deeply nested.

    Raises:
        PydanticCustomError: `TOO_LARGE`, with the bound that is exceeded.
    """
    size_bytes = 0
    for part_bytes, depth in _parts(value):
        size_bytes += part_bytes
        if depth > MAX_DEPTH:
            raise PydanticCustomError(TOO_LARGE, f"the object is nested more than {MAX_DEPTH} levels deep")
        if size_bytes > MAX_FREEFORM_BYTES:
            raise PydanticCustomError(TOO_LARGE, f"the object is larger than {MAX_FREEFORM_BYTES >> 10} KiB")
    return value


def check_spec(value: Any) -> Any:
    """Refuse a spec that is too large as a whole; the message names its largest field.

    Raises:
        PydanticCustomError: `TOO_LARGE`.
    """
    if not isinstance(value, dict):
        return value
    sizes = {str(name): sum(part_bytes for part_bytes, _ in _parts(entry)) for name, entry in value.items()}
    if sum(sizes.values()) > MAX_SPEC_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        message = f"{largest} is too large: a whole spec has at most {MAX_SPEC_BYTES >> 10} KiB"
        raise PydanticCustomError(TOO_LARGE, "{message}", {"message": message})
    return value


def too_large(message: str) -> ValidationError:
    """Return the error of a spec that could not even be read."""
    error = PydanticCustomError(TOO_LARGE, "{message}", {"message": message})
    return ValidationError.from_exception_data("RLJobSpec", [InitErrorDetails(type=error, loc=("spec",), input=None)])


def _parts(value: Any) -> Iterator[tuple[int, int]]:
    """Yield (bytes, depth) of every scalar and container of a JSON value, without recursion.

    Bytes as in compact JSON.
    """
    waiting = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, str):
            yield len(item) + 2, depth
        elif isinstance(item, dict):
            yield 2 + sum(len(str(key)) + 4 for key in item), depth
            waiting += [(entry, depth + 1) for entry in item.values()]
        elif isinstance(item, list):
            yield 2 + len(item), depth
            waiting += [(entry, depth + 1) for entry in item]
        else:
            yield _NUMBER_BYTES, depth
