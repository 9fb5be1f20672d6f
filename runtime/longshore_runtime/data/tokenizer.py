"""The tokenizer of a model."""

import os
import sys
from pathlib import Path
from typing import Any, Final

from longshore_runtime.errors import UserError, first_line

_ANY_TEXT: Final = "1 and a"


def import_without_torch() -> None:
    """Import what reads tokenizers and configurations, for a process that computes nothing.

    transformers imports torch with them where it finds it, which takes longer than everything else that a coordinator
    imports. In this process it then offers no models; torch itself can still be imported.
    """
    if "torch" in sys.modules:
        return
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # It advises users to install torch.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        from transformers import AutoConfig, AutoTokenizer  # noqa: F401
    finally:
        del sys.modules["torch"]
        del os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"]


def load_tokenizer(directory: Path, repository: str | None = None) -> Any:
    """Return the Hugging Face tokenizer in a checkpoint directory; `repository`: of the Hub, where that is from."""
    field, name = ("model.path", directory.name) if repository is None else ("model.hub", repository)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # A damaged file raises whatever its parser raises.
        raise UserError(f"{field}: {name!r} has no usable tokenizer ({first_line(error)})") from error
    if not tokenizer.encode(_ANY_TEXT, add_special_tokens=False):
        # Without its files, transformers makes a tokenizer with an empty vocabulary.
        raise UserError(f"{field}: the tokenizer of {name!r} has no vocabulary; copy its files there")
    return tokenizer
