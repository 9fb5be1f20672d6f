"""Hides the secrets of a configuration that others may see: readers of the job page and users of a tracker. Pure."""

from typing import Any, Final

from longshore.api.addresses import shown

NOT_SHOWN: Final = "(not shown)"


def without_secrets(value: Any) -> Any:
    """Return a configuration without credentials in addresses and without values of variables in pod templates."""
    match value:
        case {"name": _, "value": _}:  # A variable of a container: it may be a token.
            return {name: NOT_SHOWN if name == "value" else without_secrets(one) for name, one in value.items()}
        case dict():
            return {name: without_secrets(one) for name, one in value.items()}
        case list():
            return [without_secrets(one) for one in value]
        case str():
            return shown(value)
        case _:
            return value
