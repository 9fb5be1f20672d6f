"""The token with which a chat template ends what the assistant says.

The end tokens of a base model often lack it: Qwen2.5 ends texts with `<|endoftext|>`, and its template ends turns with
`<|im_end|>`. Without it, a response would go on with the next turn of the user, made up by the model.
"""

from collections.abc import Iterable
from typing import Any, Final

from longshore.api.model import Chat
from longshore_runtime.data.chat import rendered
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.errors import UserError

_CONTENT: Final = "Longshore"
_EXCHANGE: Final = ({"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": _CONTENT})


def turn_ends(prompts: Iterable[PromptRecord], chat: Chat | None, tokenizer: Any) -> tuple[int, ...]:
    """Return the tokens that end responses to these prompts, besides the end tokens of the model."""
    token = turn_end(chat, tokenizer) if any(prompt.messages for prompt in prompts) else None
    return () if token is None else (token,)


def turn_end(chat: Chat | None, tokenizer: Any) -> int | None:
    """Return the special token that follows an answer; None: the template has none, or takes no such conversation."""
    try:
        text = rendered(_EXCHANGE, chat, tokenizer, "an exchange", is_prompt=False)
    except UserError:
        return None
    before, _, after = text.rpartition(_CONTENT)
    first = next(iter(tokenizer.encode(after.lstrip(), add_special_tokens=False)), None) if before else None
    token = tokenizer.added_tokens_decoder.get(first)
    return first if token is not None and token.special else None
