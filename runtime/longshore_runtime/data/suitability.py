"""Check that prompts suit the model of their job."""

from typing import Final

from longshore.api.model import Chat
from longshore_runtime.data.chat import ChatTokenizer, rendered
from longshore_runtime.data.dataset import PromptSets
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.errors import UserError
from longshore_runtime.trajectories.trajectory import TokenIds

_ANSWER: Final = "Seventeen."
_MOST_SHOWN: Final = 100
"""Largest number of characters of a template that a sentence quotes."""


def require_known_tokens(prompts: PromptSets, vocab_size: int | None) -> None:
    """Raise UserError for a prompt with a token that the model has no embedding for; `vocab_size` None: unknown."""
    for record in (*prompts.train, *prompts.held_out):
        require_known(record.prompt_tokens, record.source, vocab_size)


def require_known(tokens: TokenIds, source: str, vocab_size: int | None) -> None:
    """Raise UserError for tokens of a row, at least one, of which the model has no embedding."""
    if vocab_size is not None and (largest := int(tokens.max())) >= vocab_size:
        raise UserError(
            f"model.path: the tokenizer gives {source} token {largest}, and the model "
            f"knows {vocab_size} tokens; copy the tokenizer that belongs to the model"
        )


def held_out_remark(prompts: PromptSets, wanted: int) -> str | None:
    """Return a warning if fewer prompts are held out than the job asks for because rows repeat them."""
    found, num_rows = len(prompts.held_out), len(prompts.train) + len(prompts.held_out) + prompts.num_repeating_held_out
    if found >= min(wanted, num_rows // 2):
        return None
    return (
        f"data.heldOutPrompts: {found} prompts are held out instead of {wanted}, because the data repeats its prompts, "
        "and all rows of a held-out one are left out of training; add other prompts"
    )


def turn_remark(prompts: PromptSets, chat: Chat | None, tokenizer: ChatTokenizer) -> str | None:
    """Return a warning if prompts end before the assistant's turn begins; None: they do not, or nothing tells."""
    record = next((one for one in prompts.train if one.messages), None)
    beginning = None if record is None else _missing_beginning(record, chat, tokenizer)
    if beginning is None:
        return None
    return (
        "data.chat.template: the chat template ignores add_generation_prompt, so responses may continue the user's "
        f"turn; set a template that ends prompts with {beginning[:_MOST_SHOWN]!r}"
    )


def _missing_beginning(record: PromptRecord, chat: Chat | None, tokenizer: ChatTokenizer) -> str | None:
    """Return what the template writes between a prompt and its answer, if anything.

    Some templates always end with it, and some write nothing between turns: neither lacks a beginning.
    """
    answered = (*record.messages, {"role": "assistant", "content": _ANSWER})
    try:
        if rendered(record.messages, chat, tokenizer, record.source, is_prompt=False) != record.prompt:
            return None
        whole = rendered(answered, chat, tokenizer, record.source, is_prompt=False)
    except UserError:  # The template takes no such conversation, so nothing tells.
        return None
    beginning, answer, _ = whole.removeprefix(record.prompt).partition(_ANSWER)
    return beginning if whole.startswith(record.prompt) and answer and beginning.strip() else None
