"""The final state of an episode, which reward functions get: any JSON value, written and read within limits."""

import math
from typing import Final

import orjson

from longshore_runtime.rewards.failure_text import error_text, shown
from longshore_runtime.rewards.row_json import is_deeper

MAX_STATE: Final = 1 << 20
"""Largest number of bytes of a state as JSON."""
_MAX_DEPTH: Final = 64
_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def written_state(state: object) -> str | None:
    """Return a state as JSON, None for none; raises ValueError with the end of a sentence about its giver."""
    if state is None:
        return None
    try:
        data = orjson.dumps(state, option=_OPTIONS)
    except Exception as error:  # An object of users may raise anything.
        problem = f"returned {shown(state)}, which cannot be written as JSON ({error_text(error)})"
        raise ValueError(f"{problem}; return dicts, lists, texts and numbers") from error
    if not _is_finite(state):  # orjson writes null for them, and a function would score another state.
        raise ValueError(f"returned {shown(state)}, in which a number is NaN or infinite; return finite numbers")
    return _within_limits(data)


def _is_finite(state: object) -> bool:
    if isinstance(state, float):
        return math.isfinite(state)
    if hasattr(state, "tolist"):  # Of numpy, which is not imported for those who do without.
        return _is_finite(state.tolist())
    if isinstance(state, dict):
        return all(map(_is_finite, state.values()))
    return not isinstance(state, list | tuple) or all(map(_is_finite, state))


def read_state(state: str) -> str:
    """Return a state that came as JSON, written anew so that every reader takes it; raises ValueError as above."""
    try:
        value = orjson.loads(state)
    except ValueError as error:
        raise ValueError(f"returned a state that is not JSON ({error_text(error)})") from error
    return written_state(value) or "null"


def _within_limits(data: bytes) -> str:
    if len(data) > MAX_STATE:
        raise ValueError(
            f"returned a state of {len(data) / 1024:,.0f} KiB; at most {MAX_STATE >> 10:,} KiB are possible"
        )
    if is_deeper(orjson.loads(data), _MAX_DEPTH):
        raise ValueError(f"returned a state with more than {_MAX_DEPTH} levels")
    return data.decode()
