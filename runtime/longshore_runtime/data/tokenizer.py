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


def load_tokenizer(directory: Path, repository: str | None = None, field: str | None = None) -> Any:
    """Return the Hugging Face tokenizer in a checkpoint directory.

    Args:
        directory: directory of a model.
        repository: repository of the Hub that the model is from, if it is.
        field: field to blame; None: that of the model of the job.

    Raises:
        UserError: it cannot be used.
    """
    own, name = ("model.path", directory.name) if repository is None else ("model.hub", repository)
    field = field or own
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # A damaged file raises whatever its parser raises.
        raise UserError(f"{field}: {name!r} has no usable tokenizer ({first_line(error)})") from error
    if not tokenizer.encode(_ANY_TEXT, add_special_tokens=False):
        # Without its files, transformers makes a tokenizer with an empty vocabulary.
        raise UserError(f"{field}: the tokenizer of {name!r} has no vocabulary; copy its files there")
    return tokenizer


def require_same_tokens(own: Any, other: Any, field: str) -> None:
    """Raise UserError unless the model of this field has the tokens of the model in training, whose samples it reads.

    It may have more of them, which are never sampled.
    """
    known = other.get_vocab()
    for token, number in own.get_vocab().items():
        if known.get(token) != number:
            theirs = f"token {known[token]}" if token in known else "no token"
            raise UserError(
                f"{field}: its tokenizer differs from that of the model: {token!r} is token {number} of the model and "
                f"{theirs} of this one; choose a model with the same tokenizer"
            )
