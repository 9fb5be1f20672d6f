"""Demonstrations of the built-in tasks: texts, some of which the model writes, and the others it only reads."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True)
class Segment:
    """Part of a demonstration."""

    text: str
    is_models: bool
    """Whether the model writes the text, and ends its turn after it. Otherwise, it only reads it."""


class Demonstration(Protocol):
    """Dataclass of what the warm start imitates, which may be wrong."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The prompt, then the turns of the model, and what it reads between them."""
