"""What is reported about a spec, or another model of the API, that cannot be read."""

import json
from collections.abc import Iterable, Iterator
from typing import Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from longshore.api.addresses import ADDRESS_ERROR, redacted
from longshore.api.field_names import near_name, written_path
from longshore.api.limits import TOO_LARGE
from longshore.api.rules import BROKEN_RULE

_NO_SUCH_FIELD: Final = ("extra_forbidden", "unexpected_keyword_argument")
"""Types of the error for an unknown field: of a model, and of a dataclass."""
_NO_JSON: Final = "json_invalid"
_MAX_SHOWN_CHARACTERS: Final = 200


def sentence(error: ValidationError, root: str = "", model: type[BaseModel] | None = None) -> str:
    """Return the first mistake, with its field and what is there, and how many others there are.

    `root`: what the model is part of, as `spec`; fields are reported from there. With `model`, names that are nearly
    right are recognised.
    """
    (_, sentence_text), *others = mistakes(error, root, model)
    return sentence_text + (f" (and {len(others)} more)" if others else "")


def mistakes(error: ValidationError, root: str = "", model: type[BaseModel] | None = None) -> list[tuple[str, str]]:
    """Return the field and sentence of every mistake.

    With `model`, names that do not exist come first: others are missing for them.
    """
    errors = error.errors(include_url=False)
    if model is not None:
        errors = [one | {"loc": written_path(model, one["loc"])} for one in _once(errors, model)]
        errors.sort(key=lambda one: one["type"] not in _NO_SUCH_FIELD)
    return [_path_and_text(one, root, model) for one in errors]


def _once(errors: Iterable[ErrorDetails], model: type[BaseModel]) -> Iterator[ErrorDetails]:
    """Yield one mistake of a value for which pydantic has one for each type that it might have had."""
    seen = set()
    for one in errors:
        path = written_path(model, one["loc"])
        if path == one["loc"] or path not in seen:
            yield one
        seen.add(path)


def _path_and_text(one: ErrorDetails, root: str, model: type[BaseModel] | None) -> tuple[str, str]:
    path = ".".join([*([root] if root else []), *(str(part) for part in one["loc"])])
    message = one["msg"].removeprefix("Value error, ")
    at = f"{path}: " if path else ""
    if one["type"] == BROKEN_RULE:
        return path, f"{at}{message}"
    if one["type"] in _NO_SUCH_FIELD:
        near = None if model is None else near_name(model, one["loc"])
        return path, f"{at}there is no such field" + (f"; did you mean {near}?" if near else "")
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
