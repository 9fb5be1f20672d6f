"""What is reported about a spec, or another model of the API, that cannot be read."""

import json
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from longshore.api.addresses import ADDRESS_ERROR, redacted
from longshore.api.limits import TOO_LARGE
from longshore.api.rules import BROKEN_RULE

_NO_SUCH_FIELD: Final = ("extra_forbidden", "unexpected_keyword_argument")
"""Of a model, and of a dataclass."""
_NO_JSON: Final = "json_invalid"
_MAX_SHOWN_CHARACTERS: Final = 200


def sentence(error: ValidationError, root: str = "") -> str:
    """Return the first mistake, with its field and what is there, and how many others there are.

    `root`: what the model is part of, as `spec`; fields are reported from there.
    """
    (_, sentence_text), *others = mistakes(error, root)
    return sentence_text + (f" (and {len(others)} more)" if others else "")


def mistakes(error: ValidationError, root: str = "") -> list[tuple[str, str]]:
    """Return the field and sentence of every mistake."""
    return [_path_and_text(one, root) for one in error.errors(include_url=False)]


def _path_and_text(one: ErrorDetails, root: str) -> tuple[str, str]:
    path = ".".join([*([root] if root else []), *(str(part) for part in one["loc"])])
    message = one["msg"].removeprefix("Value error, ")
    at = f"{path}: " if path else ""
    if one["type"] == BROKEN_RULE:
        return path, f"{at}{message}"
    if one["type"] in _NO_SUCH_FIELD:
        return path, f"{at}there is no such field"
    if one["type"] == "missing":
        return path, f"{at}the field is required"
    sentence_text = f"{at}{message[0].lower()}{message[1:]}"
    if one["type"] not in (_NO_JSON, TOO_LARGE, ADDRESS_ERROR):
        sentence_text += f", not {_shown(one['input'])}"
    return path, sentence_text


def _shown(value: object) -> str:
    try:
        text = redacted(json.dumps(value, default=str))
    except RecursionError:
        return "a value that is nested too deeply to be shown"
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}..."
