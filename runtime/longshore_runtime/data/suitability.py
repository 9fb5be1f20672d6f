"""Whether prompts suit the model of their job."""

from longshore_runtime.data.dataset import PromptSets
from longshore_runtime.errors import UserError


def require_known_tokens(prompts: PromptSets, vocab_size: int | None) -> None:
    """Raise UserError for a prompt with a token that the model has no embedding for; `vocab_size` None: unknown."""
    if vocab_size is None:
        return
    for record in (*prompts.train, *prompts.held_out):
        if max(record.prompt_tokens) >= vocab_size:
            raise UserError(
                f"model.path: the tokenizer gives {record.source} token {max(record.prompt_tokens)}, and the model "
                f"knows {vocab_size} tokens; copy the tokenizer that belongs to the model"
            )
