"""Whether a row of the data has what its job reads from it."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from longshore.api.environment import Environment
from longshore.api.model import DataSource, Source
from longshore.api.reward import RewardFunction
from longshore.api.warm_start import AT, WarmStartData

ABSENT: Final = object()
"""A field that is not there; None may be a value."""
_PROMPT: Final = "{prompt}"
"""Where the prompt is in its template, and the template that adds nothing."""
_WRITTEN_MESSAGES: Final = re.compile(r"""\s*(array\()?\[?\s*\{\s*(['"])(role|content)\2\s*:.*[\]})]\s*""", re.DOTALL)
"""A text that is a message or a list of messages, as JSON or as Python prints it."""
_ANSWERING_ROLES: Final = frozenset({"assistant", "model"})
"""Roles whose turn a response is."""


def value_at(fields: Mapping[str, Any], name: str) -> Any:
    """Return the field of that very name, or else the one that the dots of the name lead to; else ABSENT."""
    if name in fields:
        return fields[name]
    value: Any = fields
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return ABSENT
        value = value[part]
    return value


def fields_read(
    source: Source, functions: Sequence[RewardFunction], environments: Sequence[Environment] = ()
) -> frozenset[str] | None:
    """Return the fields of a row that its job looks at, up to the first dot of their names; None: all of them."""
    if environments:
        return None  # An episode begins with the whole row.
    read = [one.row_fields for one in functions]
    if any(fields is None for fields in read):
        return None
    names = [source.prompt_field, source.answer_field, *source.origin.where]
    names += [source.domain_field] if source.domain_field is not None else []
    names += [name for fields in read for name in fields or ()]
    return frozenset(names) | {name.partition(".")[0] for name in names}


def is_wanted(fields: Mapping[str, Any], where: Mapping[str, str]) -> bool:
    """Return whether a row is among those that the job asks for: numbers and truth values have their text in JSON."""
    return all(_text(value_at(fields, name)) == text for name, text in where.items())


def none_wanted(num_rows: int, source: Source) -> str:
    """Return what is wrong with a data set that has no row for its job."""
    origin = source.origin
    if not num_rows:
        field = "hub" if origin.path is None else "path"
        return f"{source.at}.{field}: {origin.path or origin.hub!r} holds no row"
    return f"{source.at}.where: none of the {num_rows:,} rows has {dict(origin.where)}; correct fields or texts"


def row_mistake(fields: Mapping[str, Any], source: Source) -> str | None:
    """Return what keeps a row from being a prompt with an answer; None: nothing."""
    for name, option in ((source.prompt_field, "promptField"), (source.answer_field, "answerField")):
        if value_at(fields, name) is ABSENT:
            return f"no field {name!r} (it has {', '.join(map(repr, fields))}); set {source.at}.{option}"
    prompt = value_at(fields, source.prompt_field)
    if not isinstance(prompt, str | list):
        return f"{source.prompt_field!r} must be a text or a list of messages, not {type(prompt).__name__}"
    if isinstance(prompt, list):
        return _message_mistake(prompt, source.prompt_field) or _answer_mistake(prompt, source.prompt_field)
    if _is_written_messages(prompt):
        return (
            f"{source.prompt_field!r} is a text that spells out messages, and the model would read its brackets; "
            "store the list itself instead of its text (json.loads or ast.literal_eval makes it)"
        )
    return None if source.prompt_template.replace(_PROMPT, prompt) else "the prompt is empty"


def supervised_mistake(fields: Mapping[str, Any], data: WarmStartData) -> str | None:
    """Return what keeps a row from being a prompt with a response to imitate; None: nothing."""
    for name, option in ((data.prompt_field, "promptField"), (data.response_field, "responseField")):
        if name is not None and value_at(fields, name) is ABSENT:
            return f"no field {name!r} (it has {', '.join(map(repr, fields))}); set {AT}.{option}"
    prompt = value_at(fields, data.prompt_field)
    if data.response_field is not None:
        response = value_at(fields, data.response_field)
        if not isinstance(response, str) or not response.strip():
            return f"{data.response_field!r} must be a text with the response; correct the row or leave it out"
        return row_mistake(fields, data.source)
    if not isinstance(prompt, list):
        return f"{data.prompt_field!r} is no list of messages, so it does not hold the response; set {AT}.responseField"
    if (mistake := _message_mistake(prompt, data.prompt_field)) is not None:
        return mistake
    *before, last = prompt
    if last["role"] not in _ANSWERING_ROLES or not isinstance(last.get("content"), str) or not last["content"].strip():
        return (
            f"{data.prompt_field!r}: the last message is no text of the assistant to imitate; correct the row, or set "
            f"{AT}.responseField"
        )
    return None if before else f"{data.prompt_field!r} has no message before the response"


def unused_templates(rows: Iterable[tuple[Mapping[str, Any], Source]]) -> list[str]:
    """Return a sentence for each prompt template around which there is no prompt: all of them are messages."""
    used: dict[str, bool] = {}
    for fields, source in rows:
        if source.prompt_template != _PROMPT:
            is_inherited = isinstance(source.origin, DataSource) and source.origin.prompt_template is None
            at = "data" if is_inherited else source.at
            used[at] = used.get(at, False) or isinstance(value_at(fields, source.prompt_field), str)
    return [
        f"{at}.promptTemplate: no prompt is put into it, because all are lists of messages; remove it, or name a field "
        "with texts in promptField"
        for at, is_used in used.items()
        if not is_used
    ]


def domain_of(fields: Mapping[str, Any], source: Source) -> str | None:
    """Return the domain of a row; None: it should have one, and has not."""
    if source.domain_field is None:
        return source.domain
    domain = value_at(fields, source.domain_field)
    return domain if isinstance(domain, str) else None


def domain_mistake(fields: Mapping[str, Any], source: Source, functions: Sequence[RewardFunction]) -> str | None:
    """Return why no function scores a row; None: one does."""
    domain = domain_of(fields, source)
    return no_domain(source) if domain is None else unscored(domain, functions)


def no_domain(source: Source) -> str:
    """Return what is wrong with a row without a domain."""
    return f"{source.domain_field!r} must be a text with the domain of the row; set {source.at}.domainField"


def unscored(domain: str, functions: Sequence[RewardFunction]) -> str | None:
    """Return why no function scores rows of a domain; None: one does."""
    if functions_of(domain, functions):
        return None
    return f"no reward function scores domain {domain!r}; add it to reward.functions[].domains"


def no_environment(function: RewardFunction) -> str:
    """Return what is wrong with a row that a function of kind Environment scores, and that acts in none."""
    return (
        f"reward.functions[{function.name}].kind: the row acts in no environment that could give its reward; add its "
        "domain to one, or name the domains of the function"
    )


def functions_of(domain: str, functions: Sequence[RewardFunction]) -> list[RewardFunction]:
    """Return those that score rows of a domain."""
    return [function for function in functions if not function.domains or domain in function.domains]


def _text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, bool | int | float) else value


def _is_written_messages(text: str) -> bool:
    has_both = "role" in text and "content" in text
    return has_both and _WRITTEN_MESSAGES.fullmatch(text) is not None


def _message_mistake(messages: Sequence[Any], name: str) -> str | None:
    if not messages:
        return f"{name!r} is a list without messages"
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return f"{name!r}: message {number} is no object with role and content"
        if message.get("content") is None and not message.get("tool_calls"):
            return f"{name!r}: message {number} has no content; it has {', '.join(map(repr, message))}"
    return None


def _answer_mistake(messages: Sequence[Any], name: str) -> str | None:
    if (role := messages[-1]["role"]) in _ANSWERING_ROLES:
        return (
            f"{name!r}: the last message is from the {role}, and the prompt would contain it; remove it, so that the "
            "last one is from the user or a tool"
        )
    return None
