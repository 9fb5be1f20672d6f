"""Prompts as conversations: messages, the system prompt, and the chat template that makes one text of them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from jinja2 import TemplateError

from longshore.api.model import Chat
from longshore_runtime.errors import UserError, first_line

Message = Mapping[str, Any]

_SYSTEM_ROLES: Final = frozenset({"system", "developer"})


class NoChatTemplate(UserError):
    """Raised when neither the job nor the model's tokenizer has a chat template."""


class ChatTokenizer(Protocol):
    """Methods of a Hugging Face tokenizer that chats use."""

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], /, **options: Any) -> str:
        """Return one text for a conversation."""


def conversation(prompt: str | Sequence[Message], chat: Chat | None) -> tuple[Message, ...]:
    """Return the messages of a prompt; none for a text that the job leaves as it is."""
    if isinstance(prompt, str) and chat is None:
        return ()
    messages = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else _messages(prompt)
    if chat is None or chat.system_prompt is None or any(one["role"] in _SYSTEM_ROLES for one in messages):
        return messages
    return ({"role": "system", "content": chat.system_prompt}, *messages)


def _messages(prompt: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages, and the parts of their contents, without the optional keys that they lack.

    Parquet has each key of any message in all of them. Templates ask whether a part has a key, such as `image`.
    """
    return tuple(
        {key: _parts(value) for key, value in one.items() if value is not None or key == "content"} for one in prompt
    )


def _parts(value: object) -> object:
    if not isinstance(value, list):
        return value
    return [
        {key: found for key, found in part.items() if found is not None} if isinstance(part, Mapping) else part
        for part in value
    ]


def rendered(
    messages: Sequence[Message],
    chat: Chat | None,
    tokenizer: ChatTokenizer,
    source: str,
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    is_prompt: bool = True,
) -> str:
    """Return the text that the model continues as the assistant; `source` names the row in messages.

    Args:
        tools: schemas of the functions that the assistant may call.
        is_prompt: whether the turn of the assistant begins; otherwise the text is the conversation so far.

    Raises:
        UserError: there is no template, or it does not take these messages.
    """
    template = None if chat is None else chat.template
    if template is None and getattr(tokenizer, "chat_template", "") is None:
        raise NoChatTemplate(
            f"data.chat.template: {source} is a conversation, and the model's tokenizer has no chat template; set one, "
            "or use prompts that are texts without data.chat"
        )
    arguments = {} if chat is None else chat.template_arguments
    given = {} if template is None else {"chat_template": template}
    callable_tools = {"tools": list(tools)} if tools else {}
    options = {**arguments, **given, **callable_tools, "tokenize": False, "add_generation_prompt": is_prompt}
    try:
        return tokenizer.apply_chat_template(list(messages), **options)
    except (ValueError, TypeError, TemplateError) as error:
        whose = "data.chat.template" if template is not None else "the model's chat template"
        raise UserError(f"{source}: {whose} does not take its messages ({first_line(error)})") from error
