"""Which model is trained and on which prompts."""

from enum import StrEnum
from typing import Final

from pydantic import Field

from longshore.api.base import ApiModel, RelativePath
from longshore.api.rules import Rule

BUILTIN_CONTEXT_TOKENS: Final = 2048
"""What the built-in model was made for."""
_PLACE: Final = "{prompt}"


class BuiltinModel(StrEnum):
    """A model made on the spot."""

    TINY = "Tiny"


class BuiltinTask(StrEnum):
    """A task whose prompts, rewards and demonstrations are generated."""

    COUNTING = "Counting"


class DataFormat(StrEnum):
    """How a data set is stored."""

    JSONL = "Jsonl"
    HUGGING_FACE = "HuggingFace"


_ONE_SOURCE: "Rule[Model | Data]" = Rule(
    "",
    "has(self.path) != has(self.builtin)",
    lambda source: (source.path is None) != (source.builtin is None),
    "set exactly one of path and builtin",
)
_MODEL_RULES: "tuple[Rule[Model], ...]" = (
    Rule(
        "maxContextTokens",
        f"!has(self.builtin) || self.maxContextTokens <= {BUILTIN_CONTEXT_TOKENS}",
        lambda model: model.builtin is None or model.max_context_tokens <= BUILTIN_CONTEXT_TOKENS,
        f"maxContextTokens must be at most {BUILTIN_CONTEXT_TOKENS} with the built-in model: lower it",
    ),
)
_DATA_RULES: "tuple[Rule[Data], ...]" = (
    Rule(
        "promptTemplate",
        f"self.promptTemplate.contains('{_PLACE}')",
        lambda data: _PLACE in data.prompt_template,
        f"promptTemplate must contain {_PLACE}: without it, all prompts are the same",
    ),
)


class Model(ApiModel, rules=(_ONE_SOURCE, *_MODEL_RULES)):
    """The model to train: a Hugging Face checkpoint in the storage of the job, or a built-in tiny one."""

    path: RelativePath | None = None
    """Directory of a Hugging Face checkpoint, relative to the storage of the job."""
    builtin: BuiltinModel | None = None
    """Tiny: a Qwen3 of under a million parameters with a character tokenizer, made on the spot."""
    warm_start_steps: int = Field(default=0, ge=0, le=100_000)
    """Supervised steps on the built-in task's demonstrations before the RL starts (built-in model only)."""
    max_context_tokens: int = Field(default=2048, ge=16, le=10_000_000)
    """Prompt and response together must fit into this many tokens."""


class Data(ApiModel, rules=(_ONE_SOURCE, *_DATA_RULES)):
    """Prompts to train on: a file in the storage of the job, or a built-in task."""

    path: RelativePath | None = None
    """JSONL file, or directory of a Hugging Face data set, relative to the storage of the job."""
    builtin: BuiltinTask | None = None
    """Counting: count down from N, with a long-tailed N."""
    format: DataFormat = DataFormat.JSONL
    """How the data at `path` is stored."""
    split: str = Field(default="train", min_length=1, max_length=128)
    """Split of a Hugging Face data set."""
    prompt_field: str = Field(default="prompt", min_length=1, max_length=256)
    """Field with the prompt: a text, or a list of chat messages."""
    answer_field: str = Field(default="answer", min_length=1, max_length=256)
    """Field with the reference answer."""
    domain_field: str | None = Field(default=None, min_length=1, max_length=256)
    """Field with the domain of a row, a text: reward functions are chosen by it and metrics told apart."""
    prompt_template: str = Field(default="{prompt}", max_length=16_384)
    """Text around a prompt; `{prompt}` stands for it."""
    max_prompt_tokens: int = Field(default=1024, ge=1, le=10_000_000)
    """Longer prompts are left out, and counted."""
    held_out_prompts: int = Field(default=64, ge=0, le=100_000)
    """Prompts kept out of training and scored by `evaluation`."""


class Evaluation(ApiModel):
    """Scoring of held-out prompts, before the first step and after the last, and in between when asked."""

    every_steps: int = Field(default=0, ge=0, le=1_000_000)
    """Score also after every so many steps; 0: only before and after."""
    responses_per_prompt: int = Field(default=1, ge=1, le=1_024)
    """Responses sampled per held-out prompt."""
    temperature: float = Field(default=1.0, ge=0, le=10)
    """Sampling temperature; 0 is greedy."""
