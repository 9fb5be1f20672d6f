"""verl's model, data and rewards."""

from pathlib import PurePosixPath
from typing import Any, Final

from longshore_cli.convert import left_to_do, places
from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, Missing, Refused, direct, entry
from longshore_cli.convert.verl.objective import overlong, response_tokens
from longshore_cli.convert.verl.sections import ALGORITHM, MODEL, ROLLOUT, named


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
    ["spec.data.chat"],
    "`template` and `templateArguments`",
)
def chat(settings: ForeignSettings) -> EntryOutcome:
    arguments = settings.mapping("data.apply_chat_template_kwargs")
    template = settings.text(f"{MODEL}.custom_chat_template")
    fields: dict[str, Any] = {"spec.data.chat.template": template} if template else {}
    return EntryOutcome(fields | ({"spec.data.chat.templateArguments": arguments} if arguments else {}))


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
_TURNS: Final = f"{ROLLOUT}.multi_turn.enable"
_AGENT: Final = f"{ROLLOUT}.agent.default_agent_loop"
_AGENTS: Final = f"{ROLLOUT}.agent.agent_loop_config_path"
_TOOLS: Final = (
    *named(f"{ROLLOUT}.multi_turn", "tool_config_path function_tool_path interaction_config_path"),
    "data.tool_config_path", "data.function_tool_path",
)  # fmt: skip
_ONE_TURN: Final = "a response is one turn"


@entry([_TURNS, _AGENT, _AGENTS, *_TOOLS], [], "false, `single_turn_agent` and null: a response is one turn")
def turns(settings: ForeignSettings) -> EntryOutcome:
    if settings.flag(_TURNS):
        raise Refused(_TURNS, _ONE_TURN)
    for key, single in ((_AGENT, "single_turn_agent"), (_AGENTS, None)):
        if settings[key] not in (None, single):
            raise Refused(key, f"{settings[key]}: {_ONE_TURN}, and there are no agents")
    for key in _TOOLS:
        if settings[key]:
            raise Refused(key, f"{settings[key]}: {_ONE_TURN}, without tools and without a partner: set it to null")
    return EntryOutcome()


_TEACHER: Final = "distillation.enabled"
_ONLY_EVALUATES: Final = "trainer.val_only"


@entry([_TEACHER, _ONLY_EVALUATES], [], "false: a job trains, on its rewards alone")
def other_work(settings: ForeignSettings) -> EntryOutcome:
    if settings.flag(_TEACHER):
        raise Refused(
            _TEACHER, "a job learns from rewards, and not from a teacher: set it to false to convert the rest"
        )
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
            return EntryOutcome({"spec.reward.functions": [function]}, to_do=(f"Submit the job with `--with {path}`.",))
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
    turns,
    other_work,
    rewards,
)
