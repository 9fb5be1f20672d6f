"""Tell where a response thinks, by the tags `<think>` and `</think>`, and where it answers."""

from typing import Final

_BEGIN: Final = "<think>"
_END: Final = "</think>"


def after_thinking(response: str) -> str:
    """Return what follows the last `</think>`: all of a response without one."""
    return response.rpartition(_END)[2]


def is_thinking(prompt: str, response: str) -> bool:
    """Return whether a response ends within its thinking, which the chat template may have begun for it."""
    begun = _BEGIN if prompt.rstrip().endswith(_BEGIN) else ""
    return _BEGIN in after_thinking(begun + response)
