"""Whether a row of the data has what its job reads from it."""

from collections.abc import Mapping, Sequence
from typing import Any

from longshore.api.model import Data
from longshore.api.reward import RewardFunction


def row_mistake(fields: Mapping[str, Any], data: Data) -> str | None:
    """What keeps a row from being a prompt with an answer; None: nothing."""
    for name, option in ((data.prompt_field, "data.promptField"), (data.answer_field, "data.answerField")):
        if name not in fields:
            return f"no field {name!r} (it has {', '.join(map(repr, fields))}); set {option}"
    prompt = fields[data.prompt_field]
    if not isinstance(prompt, str | list):
        return f"{data.prompt_field!r} must be a text or a list of messages, not {type(prompt).__name__}"
    if isinstance(prompt, list):
        return _message_mistake(prompt, data.prompt_field)
    return None if data.prompt_template.replace("{prompt}", prompt) else "the prompt is empty"


def domain_mistake(fields: Mapping[str, Any], field: str | None, functions: Sequence[RewardFunction]) -> str | None:
    """Why no function scores a row; None: one does."""
    domain = "" if field is None else fields.get(field)
    if not isinstance(domain, str):
        return f"{field!r} must be a text with the domain of the row; set data.domainField"
    if not functions_of(domain, functions):
        return f"no reward function scores domain {domain!r}; add it to reward.functions[].domains"
    return None


def functions_of(domain: str, functions: Sequence[RewardFunction]) -> list[RewardFunction]:
    """Those that score rows of a domain."""
    return [function for function in functions if not function.domains or domain in function.domains]


def _message_mistake(messages: Sequence[Any], name: str) -> str | None:
    if not messages:
        return f"{name!r} is a list without messages"
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict) or "role" not in message:
            return f"{name!r}: message {number} is no object with role and content"
    return None
