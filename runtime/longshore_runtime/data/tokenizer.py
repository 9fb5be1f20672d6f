"""The tokenizer of a model, without importing torch."""

from pathlib import Path
from typing import Any, Final

from longshore_runtime.errors import UserError

_ANY_TEXT: Final = "1 and a"


def load_tokenizer(directory: Path) -> Any:
    """The Hugging Face tokenizer in a checkpoint directory."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # A damaged file raises whatever its parser raises.
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"model.path: {directory.name!r} has no usable tokenizer ({reason})") from error
    if not tokenizer.encode(_ANY_TEXT, add_special_tokens=False):
        # Without its files, transformers makes a tokenizer with an empty vocabulary.
        raise UserError(f"model.path: the tokenizer of {directory.name!r} has no vocabulary; copy its files there")
    return tokenizer
