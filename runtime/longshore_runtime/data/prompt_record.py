"""Record of one row of the data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from longshore_runtime.trajectories.trajectory import ComparedByValue, TokenIds, token_ids


@dataclass(frozen=True, eq=False)
class PromptRecord(ComparedByValue):
    """One row of the data: what is sampled from and scored against."""

    row: int
    """Place of its row among those that `where` selects, from 0."""
    prompt: str
    prompt_tokens: TokenIds
    answer: str
    fields: Mapping[str, object] = field(default_factory=dict)
    """All fields of the row."""
    source: str = ""
    """Origin of the row, for messages."""
    domain: str = ""
    reference: object = None
    """The unconverted answer of the row, which may be other than a text."""
    messages: tuple[Mapping[str, object], ...] = ()
    """The prompt as a conversation; empty if it is plain text."""
    data_set: str = ""
    """Name of its data set, if several are mixed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_tokens", token_ids(self.prompt_tokens))

    @property
    def key(self) -> bytes:
        """Prompt tokens as a key: equal for equal prompts."""
        return self.prompt_tokens.tobytes()
