"""Token ids of prompts: with the special tokens that begin a text, once, and without those that end one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from longshore_runtime.errors import UserError

_ANY_TEXT: Final = "1 and a"


class Encoder(Protocol):
    """Methods of a Hugging Face tokenizer that encoding uses."""

    def encode(self, text: str, /, **options: Any) -> list[int]:
        """Return the token ids of a text."""


@dataclass(frozen=True)
class PromptEncoding:
    """Way in which a tokenizer makes prompts of texts."""

    tokenizer: Encoder
    leading: tuple[int, ...]
    """Special tokens that the tokenizer puts before a text."""

    def rendered(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text by a chat template, which writes the special tokens itself."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def plain(self, text: str) -> tuple[int, ...]:
        """Return the tokens of any other text. One that has its special tokens already gets no more of them."""
        tokens = self.rendered(text)
        return tokens if tokens[:1] and tokens[0] in self.leading else (*self.leading, *tokens)


def prompt_encoding(tokenizer: Encoder) -> PromptEncoding:
    """Return how a tokenizer makes prompts; raises UserError if it adds special tokens that stand elsewhere."""
    text = tokenizer.encode(_ANY_TEXT, add_special_tokens=False)
    whole = tokenizer.encode(_ANY_TEXT, add_special_tokens=True)
    place = _place(text, whole)
    if place is None:
        raise UserError(
            "model.path: the special tokens of the tokenizer stand neither before nor after a text, so prompts cannot "
            "be made with it; copy the tokenizer that belongs to the model"
        )
    return PromptEncoding(tokenizer, tuple(whole[:place]))


def _place(part: Sequence[int], whole: Sequence[int]) -> int | None:
    """Return where a sequence begins in another one; None: it is not there."""
    places = range(len(whole) - len(part) + 1)
    return next((place for place in places if list(whole[place : place + len(part)]) == list(part)), None)
