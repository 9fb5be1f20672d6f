"""Which model is trained and on which prompts."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from longshore.api.base import ApiModel, Freeform, RelativePath
from longshore.api.hub import Repository, Revision
from longshore.api.rules import Rule, have_different_names

BUILTIN_CONTEXT_TOKENS: Final = 2048
"""What the built-in model was made for."""
_PLACE: Final = "{prompt}"

FieldName = Annotated[str, Field(min_length=1, max_length=256)]
"""A field of a row. Dots lead into objects, as in `reward_model.ground_truth`."""


class BuiltinModel(StrEnum):
    """A model made on the spot."""

    TINY = "Tiny"


class BuiltinTask(StrEnum):
    """A task whose prompts, rewards and demonstrations are generated."""

    COUNTING = "Counting"
    GUESSING = "Guessing"


class DataFormat(StrEnum):
    """How a data set is stored."""

    JSONL = "Jsonl"
    PARQUET = "Parquet"
    HUGGING_FACE = "HuggingFace"


_REVISION: Rule = Rule(
    "revision",
    "!has(self.revision) || has(self.hub)",
    "revision belongs to hub: set hub, or remove revision",
)
_MODEL_RULES: Final = (
    Rule(
        "",
        "[has(self.path), has(self.builtin), has(self.hub)].exists_one(one, one)",
        "set exactly one of path, hub and builtin",
    ),
    Rule(
        "maxContextTokens",
        f"!has(self.builtin) || self.maxContextTokens <= {BUILTIN_CONTEXT_TOKENS}",
        f"maxContextTokens must be at most {BUILTIN_CONTEXT_TOKENS} with the built-in model: lower it",
    ),
)
_OURS: Final = ["add_generation_prompt", "chat_template", "conversation", "messages", "tokenize"]
_CHAT_RULES: Final = (
    Rule(
        "templateArguments",
        f"!{_OURS}.exists(name, name in self.templateArguments)",
        f"templateArguments must not contain {', '.join(_OURS)}, which Longshore sets: remove them",
        in_schema=False,
    ),
)
_SET_RULES: Final = (
    Rule(
        "config",
        "!has(self.config) || has(self.hub)",
        "config belongs to hub: set hub, or remove config",
    ),
)
TEMPLATE_RULE: Final = Rule(
    "promptTemplate",
    f"!has(self.promptTemplate) || self.promptTemplate.contains('{_PLACE}')",
    f"promptTemplate must contain {_PLACE}: without it, all prompts are the same",
)
_SOURCE_RULES: Final = (
    Rule(
        "",
        "has(self.path) != has(self.hub)",
        "set exactly one of path and hub",
    ),
    Rule(
        "domain",
        "!has(self.domain) || !has(self.domainField)",
        "domain and domainField exclude each other: remove one",
    ),
    TEMPLATE_RULE,
)
_DATA_RULES: Final = (
    Rule(
        "",
        "[has(self.path), has(self.builtin), has(self.hub), has(self.sources)].exists_one(one, one)",
        "set exactly one of path, hub, sources and builtin",
    ),
    Rule(
        "sources",
        "!has(self.sources) || self.?where.orValue({}).size() == 0 && self.split == 'train' && self.format == 'Jsonl'",
        "split, format and where are those of each source: move them into sources",
    ),
    have_different_names("sources"),
    Rule(
        "chat",
        "!has(self.chat) || !has(self.builtin)",
        "chat does not apply to the built-in task: remove it",
    ),
    TEMPLATE_RULE,
)


class Model(ApiModel, rules=(_REVISION, *_MODEL_RULES)):
    """Model to train: a Hugging Face checkpoint in the storage of the job or on the Hub, or a tiny built-in model."""

    path: RelativePath | None = None
    """Directory of a Hugging Face checkpoint, as a path inside the storage of the job."""
    hub: Repository | None = None
    """Repository of the Hub, such as `Qwen/Qwen2.5-1.5B`, downloaded once into the storage of the job."""
    revision: Revision | None = None
    """Branch, tag or commit of `hub`. The commit is chosen once: restarts use the same one. Unset: main."""
    builtin: BuiltinModel | None = None
    """Built-in model. Tiny: a Qwen3 with fewer than a million parameters, generated when the job starts."""
    max_context_tokens: int = Field(default=2048, ge=16, le=10_000_000)
    """Largest number of tokens of a prompt and its response together."""


class Chat(ApiModel, rules=_CHAT_RULES):
    """How prompts become conversations."""

    system_prompt: str | None = Field(default=None, min_length=1, max_length=16_384)
    """System message for every conversation that has none."""
    template: str | None = Field(default=None, min_length=1, max_length=16_384)
    """Chat template in Jinja. Unset: the chat template of the tokenizer."""
    template_arguments: Freeform = Field(default_factory=dict)
    """Further arguments of the chat template, such as `enable_thinking: false`."""


class DataSet(ApiModel, rules=(_REVISION, *_SET_RULES)):
    """Data set in the storage of the job or on the Hub."""

    path: RelativePath | None = None
    """File or directory with the data, as a path inside the storage of the job."""
    hub: Repository | None = None
    """Data set of the Hub with Parquet or JSONL files, such as `openai/gsm8k`, downloaded once into the storage of the
    job."""
    revision: Revision | None = None
    """Branch, tag or commit of `hub`. The commit is chosen once: restarts use the same one. Unset: main."""
    config: str | None = Field(default=None, min_length=1, max_length=256)
    """Configuration (subset) of the data set `hub`. Unset: the only one, or the default."""
    format: DataFormat = DataFormat.JSONL
    """Format of the data at `path`. Jsonl: a JSONL file. Parquet: a Parquet file or a directory of them. HuggingFace: a
    directory written by the library `datasets`."""
    split: str = Field(default="train", min_length=1, max_length=128)
    """Split of the data set `hub`, or of a directory written by `datasets`."""
    where: dict[str, Annotated[str, Field(max_length=256)]] = Field(default_factory=dict, max_length=8)
    """Values that fields of a row must have for the row to be used, as text: `{ability: code, level: "5"}`."""


class DataSource(DataSet, rules=_SOURCE_RULES):
    """One of several data sets.

    Unset promptField, answerField, domainField and promptTemplate are those of `data`; every other field that says
    where rows come from is set for each source.
    """

    name: str = Field(max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
    """Name of the source in messages."""
    weight: float = Field(default=1.0, gt=0, le=1_000_000)
    """Share of the sampled prompts that come from this source, relative to the weights of the other sources."""
    prompt_field: FieldName | None = None
    """Field of a row with the prompt. Unset: `data.promptField`."""
    answer_field: FieldName | None = None
    """Field of a row with the reference answer. Unset: `data.answerField`."""
    domain_field: FieldName | None = None
    """Field of a row with its domain. Unset: `data.domainField`, unless `domain` is set."""
    domain: str | None = Field(default=None, min_length=1, max_length=256)
    """Domain of all rows of this source."""
    prompt_template: str | None = Field(default=None, max_length=16_384)
    """Text around a prompt, with `{prompt}` in its place. Unset: `data.promptTemplate`."""


@dataclass(frozen=True)
class Source:
    """A data set with every default applied."""

    at: str
    """Place in the spec that names the data set: `data` or `data.sources[name]`."""
    name: str
    """Name of the source; empty if it is the only one."""
    weight: float
    origin: DataSet
    prompt_field: str
    answer_field: str
    domain_field: str | None
    domain: str
    """Domain of all rows, if there is no `domain_field`."""
    prompt_template: str


class Data(DataSet, rules=_DATA_RULES):
    """Prompts to train on and to evaluate with.

    They are one data set in the storage of the job or on the Hub, several of them, or a built-in task.
    """

    sources: Annotated[list[DataSource], Field(min_length=1, max_length=32)] | None = Field(
        default=None, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    )
    """Several data sets, mixed by weight."""
    builtin: BuiltinTask | None = None
    """Built-in task. Counting: count down from a number, seldom a large one. Guessing: find a secret letter in several
    turns, with an environment of kind Task."""
    prompt_field: FieldName = "prompt"
    """Field of a row with the prompt, a text or a list of chat messages. Dots lead into objects, as in
    `extra.question`, here and in other names of fields."""
    answer_field: FieldName = "answer"
    """Field of a row with the reference answer."""
    domain_field: FieldName | None = None
    """Field of a row with its domain, which selects reward functions and separates metrics. Unset: no domains."""
    prompt_template: str = Field(default="{prompt}", max_length=16_384)
    """Text around a plain-text prompt, with `{prompt}` in its place."""
    chat: Chat | None = None
    """How prompts become conversations. If it is set, even to `{}`, a plain-text prompt becomes a user message."""
    max_prompt_tokens: int = Field(default=1024, ge=1, le=10_000_000)
    """Largest length of a prompt, in tokens. Longer prompts are left out and counted."""
    held_out_prompts: int = Field(default=64, ge=0, le=100_000)
    """Number of prompts that are kept out of training and scored by `evaluation`."""

    @property
    def each(self) -> tuple[Source, ...]:
        """The data sets; none with a built-in task."""
        if self.builtin is not None:
            return ()
        if self.sources is None:
            fields = self.prompt_field, self.answer_field, self.domain_field, "", self.prompt_template
            return (Source("data", "", 1.0, self, *fields),)
        return tuple(self._with_defaults(source) for source in self.sources)

    def _with_defaults(self, source: DataSource) -> Source:
        inherited = None if source.domain is not None else self.domain_field
        return Source(
            f"data.sources[{source.name}]",
            source.name,
            source.weight,
            source,
            source.prompt_field or self.prompt_field,
            source.answer_field or self.answer_field,
            source.domain_field or inherited,
            source.domain or "",
            source.prompt_template or self.prompt_template,
        )


class Evaluation(ApiModel):
    """Scoring of held-out prompts before the first step, after the last, and optionally in between."""

    every_steps: int = Field(default=0, ge=0, le=1_000_000)
    """Number of steps between evaluations. 0: only before the first step and after the last."""
    responses_per_prompt: int = Field(default=1, ge=1, le=1_024)
    """Number of responses sampled for each held-out prompt."""
    temperature: float = Field(default=1.0, ge=0, le=10)
    """Sampling temperature of an evaluation. 0: greedy."""
