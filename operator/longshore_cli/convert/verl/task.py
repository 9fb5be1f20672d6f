"""verl's model, data and rewards."""

from pathlib import PurePosixPath
from typing import Final

from longshore_cli.convert import episodes, left_to_do, places
from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, Missing, Refused, direct, entry
from longshore_cli.convert.verl.environments import environments, is_agent
from longshore_cli.convert.verl.objective import overlong, response_tokens
from longshore_cli.convert.verl.sections import ALGORITHM, MODEL, ROLLOUT


@entry(
    [f"{MODEL}.path"],
    ["spec.model.hub", "spec.model.path"],
    "`hub` for a name of the Hub, else `path` below `models/` of the storage",
)
def model(settings: ForeignSettings) -> EntryOutcome:
    name = settings.text(f"{MODEL}.path")
    if name is None:
        raise Missing(f"{MODEL}.path", "it is unset, and a job needs a model")
    return places.model(name, f"{MODEL}.path")


_PADDED: Final = f"{ROLLOUT}.prompt_length"


@entry(
    ["data.max_prompt_length", _PADDED, f"{ROLLOUT}.max_model_len"],
    ["spec.data.maxPromptTokens", "spec.model.maxContextTokens"],
    "the context is `max_model_len`, or else holds the longest prompt and the longest response",
    data__max_prompt_length=512,
)
def lengths(settings: ForeignSettings) -> EntryOutcome:
    prompt = settings.wanted("data.max_prompt_length", "prompts need a limit")
    response = response_tokens.convert(settings).fields[f"{ALGORITHM}.maxResponseTokens"]
    context = settings.count(f"{ROLLOUT}.max_model_len") or prompt + response
    other = settings[_PADDED] not in (None, prompt)
    return EntryOutcome(
        {"spec.data.maxPromptTokens": prompt, "spec.model.maxContextTokens": context},
        {_PADDED: "prompts of more than data.max_prompt_length tokens are left out, and none is cut"} if other else {},
    )


@entry(
    ["data.train_files"],
    ["spec.data.path", "spec.data.format", "spec.data.sources"],
    "one file, or `sources` for several, below `data/` of the storage",
)
def data(settings: ForeignSettings) -> EntryOutcome:
    files = settings.texts("data.train_files")
    if not files:
        raise Missing("data.train_files", "it is unset, and a job needs data")
    return places.data(files, "data.train_files")


@entry(
    [f"{MODEL}.custom_chat_template", "data.apply_chat_template_kwargs", "data.apply_chat_template_kwargs.*"],
    [episodes.CHAT],
    "`template` and `templateArguments`; `{}` with tools",
)
def chat(settings: ForeignSettings) -> EntryOutcome:
    arguments = settings.mapping("data.apply_chat_template_kwargs")
    template = settings.text(f"{MODEL}.custom_chat_template")
    return episodes.chat({"template": template, "templateArguments": arguments}, is_agent=is_agent(settings))


@entry(["data.prompt_key"], ["spec.data.promptField"], "", data__prompt_key="prompt")
def columns(settings: ForeignSettings) -> EntryOutcome:
    column = settings.text("data.prompt_key") or "prompt"
    look = left_to_do.columns(column, "reward_model.ground_truth")
    return EntryOutcome({"spec.data.promptField": column}, to_do=(look,))


_REWARDS: Final = ("reward.custom_reward_function", "custom_reward_function")
_REWARD_MODELS: Final = ("reward.reward_model.enable", "reward_model.enable")
_SPREAD: Final = (
    "Set weight: 2 for the function maths if verl's function is that of math_dapo or aime, which gives -1 or 1: Maths "
    "gives 0 or 1, and the penalty of long responses would weigh twice as much."
)
_LAST_TURN: Final = (
    "Look at your reward function: solution_str is the last turn of an episode, and in verl all of its turns."
)
_ONLY_EVALUATES: Final = "trainer.val_only"


@entry([_ONLY_EVALUATES], [], "false: a job trains")
def other_work(settings: ForeignSettings) -> EntryOutcome:
    if settings.flag(_ONLY_EVALUATES):
        raise Refused(_ONLY_EVALUATES, "a job trains: set it to false to convert the rest")
    return EntryOutcome()


@entry(
    [*(f"{group}.{name}" for group in _REWARDS for name in ("path", "name")), *_REWARD_MODELS],
    ["spec.reward.functions"],
    "a function of kind Python with `signature: Verl`, whose file `longshore submit --with` submits; "
    "without one, kind Maths",
)
def rewards(settings: ForeignSettings) -> EntryOutcome:
    for key in _REWARD_MODELS:
        if settings.flag(key):
            raise Refused(
                key, "reward models that give a number are not available; a judge (kind Judge) reads and grades"
            )
    for group in _REWARDS:
        if path := settings.text(f"{group}.path"):
            module = PurePosixPath(path).stem
            function = {"name": "reward", "kind": "Python", "signature": "Verl",
                        "importPath": f"{module}:{settings.text(f'{group}.name') or 'compute_score'}"}  # fmt: skip
            look = (f"Submit the job with `--with {path}`.", *([_LAST_TURN] if is_agent(settings) else []))
            return EntryOutcome({"spec.reward.functions": [function]}, to_do=look)
    message = (
        "Look at spec.reward.functions: kind Maths takes the place of verl's own functions, which it chooses by "
        "data_source. Test cases need kind Code."
    )
    to_do = (message, _SPREAD) if overlong.convert(settings).fields else (message,)
    return EntryOutcome({"spec.reward.functions": [{"name": "maths", "kind": "Maths"}]}, to_do=to_do)


ENTRIES: Final[tuple[MappingEntry, ...]] = (
    model,
    lengths,
    data,
    columns,
    direct("data.reward_fn_key", "spec.data.domainField", "domains choose reward functions", default="data_source"),
    chat,
    environments,
    other_work,
    rewards,
)
