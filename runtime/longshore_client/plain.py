"""Text from elsewhere, made safe for a terminal.

Status, events and logs hold what pods write, and pods run what models write. An escape sequence in it could rename the
window, hide lines or answer a question of the shell; a right-to-left mark could turn a sentence around.
"""

import re
from collections.abc import Callable
from typing import Any, Final

_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""All control characters but tab and line feed, and those that change the direction of text."""


def plain(text: str) -> str:
    r"""Return the text with control characters spelled out, as `\x1b`, and without passwords in addresses."""
    from longshore.api.addresses import redacted  # with it comes pydantic, which --help does without

    return redacted(_UNSAFE.sub(_spelled, text))


def plain_json(value: Any) -> Any:
    """Return the same for every text in a JSON value."""
    return _mapped(value, plain)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(name): _mapped(item, change) for name, item in value.items()}
    return [_mapped(item, change) for item in value] if isinstance(value, list) else value


def _spelled(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
