"""The tokenizer of a model, without importing torch."""

from pathlib import Path
from typing import Any

from longshore_runtime.errors import UserError


def load_tokenizer(directory: Path) -> Any:
    """The Hugging Face tokenizer in a checkpoint directory."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"model.path: {directory.name!r} has no usable tokenizer ({reason})") from error
