"""Check that a chat template reads the arguments that a job gives it."""

import difflib
from collections.abc import Set
from typing import Any

from jinja2 import Environment, TemplateError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from longshore.api.model import Chat
from longshore_runtime.data.chat import ChatTokenizer
from longshore_runtime.errors import UserError


class _Generation(Extension):
    """The tag of transformers around what the assistant has said."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def require_arguments_read(chat: Chat | None, tokenizer: ChatTokenizer) -> None:
    """Raise UserError for an argument that the chat template never reads; a template that cannot be read reads all."""
    if chat is None or not chat.template_arguments:
        return
    read = _variables(getattr(tokenizer, "chat_template", None) if chat.template is None else chat.template)
    unread = [] if read is None else [name for name in chat.template_arguments if name not in read]
    if read is not None and unread:
        close = difflib.get_close_matches(unread[0], sorted(read), 1)
        fix = f"write {close[0]!r}" if close else "remove it"
        raise UserError(f"data.chat.templateArguments: the chat template never reads {unread[0]!r}; {fix}")


def _variables(template: Any) -> Set[str] | None:
    """Return what a template reads of what it is given; None: nothing tells, as with several templates."""
    if not isinstance(template, str):
        return None
    environment = Environment(extensions=[_Generation, "jinja2.ext.loopcontrols"])
    try:
        return meta.find_undeclared_variables(environment.parse(template))
    except TemplateError:
        return None
