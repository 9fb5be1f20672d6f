"""The test cases of a row as a list, however its data set writes them down."""

import json
from collections.abc import Mapping
from typing import Any

from longshore.checks.rows import value_at


def case_list(row: Mapping[str, Any], field: str, source: str) -> list[Any]:
    """Return test cases that `sandbox.cases` can parse; raises ValueError that names row and field.

    They are such a list, or an object `{inputs, outputs}` as in APPS, TACO and Eurus, with `fn_name` for calls of a
    function; or either of them as JSON in a text.
    """
    raw = value_at(row, field)
    if isinstance(raw, str):
        try:
            raw = json.loads(raw)
        except (ValueError, RecursionError):
            raw = None
    if isinstance(raw, Mapping) and {"inputs", "outputs"} <= raw.keys():
        raw = _paired(raw, f"{source}, {field}")
    if raw == []:
        raise ValueError(f"{source}: {field!r} has no test case; add one, or remove the row")
    if not isinstance(raw, list):
        raise ValueError(f"{source}: {field!r} must be a list of test cases; set code.testsField to where they are")
    return raw


def _paired(raw: Mapping[str, Any], source: str) -> list[Any]:
    inputs, outputs, entry = raw["inputs"], raw["outputs"], raw.get("fn_name")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError(f"{source}: inputs and outputs must be lists of the same length")
    if entry is None:
        pairs = zip(inputs, outputs, strict=True)
        return [{"stdin": _text(given), "stdout": _text(expected)} for given, expected in pairs]
    if all(isinstance(one, list) and len(one) == 1 for one in outputs):
        outputs = [one[0] for one in outputs]  # The value is wrapped.
    pairs = zip(inputs, outputs, strict=True)
    return [{"entry": entry, "arguments": given, "expected": expected} for given, expected in pairs]


def _text(value: Any) -> Any:
    """Join the lines of a value that is a list of them."""
    is_lines = isinstance(value, list) and all(isinstance(line, str) for line in value)
    return "\n".join(value) if is_lines else value
