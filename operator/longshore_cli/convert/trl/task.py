"""TRL's model, data and rewards."""

from typing import Any, Final

from longshore_cli.convert import episodes, left_to_do, places
from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, Missing, Refused, direct, entry
from longshore_cli.convert.trl.environments import ROW, has_class, is_agent
from longshore_cli.convert.trl.objective import ALGORITHM, response_tokens
from longshore_cli.convert.trl.rewards import rewards

_MAIN: Final = "main"
"""TRL's default for a revision."""


@entry(["model_name_or_path", "model", "model_revision"], ["spec.model.hub", "spec.model.revision", "spec.model.path"],
       "`hub` for a name of the Hub, else `path` below `models/` of the storage")  # fmt: skip
def model(settings: ForeignSettings) -> EntryOutcome:
    name = settings.text("model_name_or_path") or settings.text("model")
    if name is None:
        raise Missing("model_name_or_path", "it is unset, and a job needs a model")
    found, revision = places.model(name, "model_name_or_path"), settings.text("model_revision")
    if revision is None:
        return found
    if "spec.model.hub" in found.fields:
        return EntryOutcome(found.fields | {"spec.model.revision": revision})
    lost = {} if revision == _MAIN else {"model_revision": "the model is a directory, which has no revisions"}
    return EntryOutcome(found.fields, lost, found.to_do)


@entry(["dataset_name", "dataset_config", "dataset_train_split"],
       ["spec.data.hub", "spec.data.config", "spec.data.split", "spec.data.path"],
       "`hub` for a name of the Hub, else `path` below `data/` of the storage",
       dataset_train_split="train")  # fmt: skip
def data(settings: ForeignSettings) -> EntryOutcome:
    name, config = settings.text("dataset_name"), settings.text("dataset_config")
    if name is None:
        why = "it is unset, and a job needs data: a name of the Hub, or a file to copy with put"
        raise Missing(
            "dataset_name",
            f"{why}; where reset returns prompts, promptsPerStep rows {ROW}" if has_class(settings) else why,
        )
    split: dict[str, Any] = {"spec.data.split": settings.text("dataset_train_split") or "train"}
    if not places.is_repository(name):
        found = places.data([name], "dataset_name")
        return EntryOutcome(found.fields | split, to_do=found.to_do)
    return EntryOutcome({"spec.data.hub": name} | ({"spec.data.config": config} if config else {}) | split)


_PROMPT_TOKENS: Final = 1024


@entry(["max_prompt_length", "vllm_max_model_length"], ["spec.data.maxPromptTokens", "spec.model.maxContextTokens"],
       "the context is `vllm_max_model_length`, or else holds prompt and response. `max_prompt_length` is of older "
       "versions; without it prompts may fill what the longest response leaves of the context")  # fmt: skip
def lengths(settings: ForeignSettings) -> EntryOutcome:
    key = "vllm_max_model_length"
    prompt, context = settings.count("max_prompt_length"), settings.count(key)
    response = response_tokens.convert(settings).fields[f"{ALGORITHM}.maxResponseTokens"]
    to_do: tuple[str, ...] = ()
    if prompt is None and context is not None:
        if context <= response:
            raise Refused(key, f"a context of {context} tokens has no room for a prompt and {response} tokens more")
        prompt = context - response
    elif prompt is None:
        prompt = _PROMPT_TOKENS
        to_do = (f"Look at spec.data.maxPromptTokens, {prompt}: longer prompts are left out, and TRL has no limit.",)
    else:
        to_do = (f"Look at spec.data.maxPromptTokens, {prompt}: longer prompts are left out, and TRL cuts them.",)
    fields = {"spec.data.maxPromptTokens": prompt, "spec.model.maxContextTokens": context or prompt + response}
    return EntryOutcome(fields, to_do=to_do)


_TEMPLATE: Final = "chat_template_kwargs"


@entry([_TEMPLATE, f"{_TEMPLATE}.*"], [episodes.CHAT], "`templateArguments`; `{}` with tools or environments")
def chat(settings: ForeignSettings) -> EntryOutcome:
    return episodes.chat({"templateArguments": settings.mapping(_TEMPLATE)}, is_agent=is_agent(settings))


_COLUMN: Final = "dataset_prompt_column"


@entry([_COLUMN], ["spec.data.promptField"], "a key of open-r1; unset: `prompt`")
def columns(settings: ForeignSettings) -> EntryOutcome:
    column = settings.text(_COLUMN)
    return EntryOutcome(
        {"spec.data.promptField": column} if column else {},
        to_do=(left_to_do.columns(column or "prompt", "solution with accuracy_reward"),),
    )


ENTRIES: Final[tuple[MappingEntry, ...]] = (
    model,
    data,
    columns,
    lengths,
    chat,
    direct("chat_template", "spec.data.chat.template", "a key of open-r1"),
    direct("system_prompt", "spec.data.chat.systemPrompt", "a key of open-r1"),
    rewards,
)
