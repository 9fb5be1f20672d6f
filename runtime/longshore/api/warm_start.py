"""Supervised steps before the first round."""

from typing import Final

from pydantic import Field

from longshore.api.base import ApiModel
from longshore.api.model import TEMPLATE_RULE, DataSet, FieldName, Source
from longshore.api.objectives.aggregation import Aggregation
from longshore.api.rules import Rule

_DATA_RULES: Final = (
    Rule(
        "",
        "has(self.path) != has(self.hub)",
        "set exactly one of path and hub",
    ),
    TEMPLATE_RULE,
)
AT: Final = "algorithm.warmStart.data"
"""Place in the spec that names the rows."""


class WarmStartData(DataSet, rules=_DATA_RULES):
    """Rows with a prompt and the response to imitate, in the storage of the job or on the Hub."""

    prompt_field: FieldName = "messages"
    """Field of a row with the prompt, a text or a list of chat messages. Without responseField, its last message is
    the response."""
    response_field: FieldName | None = None
    """Field of a row with the response, a text. Unset: the last message of the prompt, from the assistant."""
    prompt_template: str = Field(default="{prompt}", max_length=16_384)
    """Text around a plain-text prompt, with `{prompt}` in its place. `data.chat` makes a conversation of prompts, as in
    the rounds."""

    @property
    def source(self) -> Source:
        """The data set with every default applied."""
        answer_field = self.response_field or self.prompt_field
        return Source(AT, "", 1.0, self, self.prompt_field, answer_field, None, "", self.prompt_template)


class WarmStart(ApiModel):
    """Supervised steps on responses to imitate, with the trainers of the job, before the first round.

    The result is the initial model: what a KL penalty refers to, and what round 1 samples with.
    All weights are trained, also where the rounds train an adapter.
    """

    data: WarmStartData | None = None
    """Rows to imitate. Unset: demonstrations of the built-in task, some of which are wrong."""
    steps: int = Field(ge=1, le=1_000_000)
    """Number of supervised optimizer steps."""
    rows_per_step: int = Field(default=32, ge=1, le=65_536)
    """Number of rows that one step imitates. Every row comes once before any comes again, in random order."""
    learning_rate: float = Field(default=1e-5, gt=0, le=1)
    """Peak learning rate, from which it falls linearly to a tenth. Other settings of AdamW are those of the job."""
    warmup_steps: int = Field(default=20, ge=0, le=1_000_000)
    """Number of steps over which the learning rate rises linearly to its peak."""
    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    """How losses of tokens become the loss of a step, as in objective Custom. SequenceMean: rows weigh the same,
    however long their responses are."""
