"""Mistakes in what the user gave."""

import json
from typing import Final

from pydantic import ValidationError

from longshore_cli.errors import CliError

EXIT_BAD_INPUT: Final = 2
_NO_SUCH_FIELD: Final = "extra_forbidden"


class BadInput(CliError):
    """A file or an option that cannot be used; the exit code is 2."""


def sentence(error: ValidationError) -> str:
    """The first mistake, with its field and what is there, and how many others there are."""
    first, *others = error.errors(include_url=False)
    path = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    at = f"{path}: " if path else ""
    if first["type"] == "value_error":
        # Rules over several fields begin with the one that they blame.
        told = f"{path}.{message}" if path else message
    elif first["type"] == _NO_SUCH_FIELD:
        told = f"{at}there is no such field"
    elif first["type"] == "missing":
        told = f"{at}the field is required"
    else:
        told = f"{at}{message[0].lower()}{message[1:]}, not {json.dumps(first['input'], default=str)}"
    return told + (f" (and {len(others)} more)" if others else "")
