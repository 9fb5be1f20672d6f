"""verl's tools and agents."""

from pathlib import PurePosixPath
from typing import Final

from longshore_cli.convert import episodes
from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, Missing, Refused, entry
from longshore_cli.convert.verl.sections import ROLLOUT, named

_MULTI_TURN: Final = f"{ROLLOUT}.multi_turn"
_ENABLE: Final = f"{_MULTI_TURN}.enable"
FILES: Final = (f"{_MULTI_TURN}.function_tool_path", "data.function_tool_path")
"""Keys for the file of functions; the second one follows from the first unless it is set."""
NAMES: Final = "function_tools"
"""Key of Longshore, with the functions in that file."""
_TOOL_CLASSES: Final = (f"{_MULTI_TURN}.tool_config_path", "data.tool_config_path")
_INTERACTIONS: Final = f"{_MULTI_TURN}.interaction_config_path"
_LOOP: Final = f"{ROLLOUT}.agent.default_agent_loop"
_LOOPS: Final = f"{ROLLOUT}.agent.agent_loop_config_path"
_TURNS: Final = f"{_MULTI_TURN}.max_assistant_turns"
_ANSWERS: Final = f"{_MULTI_TURN}.max_user_turns"
_CUTS: Final = named(_MULTI_TURN, "max_tool_response_length tool_response_truncate_side")
_PARALLEL: Final = f"{_MULTI_TURN}.max_parallel_calls"
_TOOL_AGENT: Final = "tool_agent"
_SINGLE: Final = "single_turn_agent"
_OTHERS: Final = {
    **dict.fromkeys(_TOOL_CLASSES, "classes of tools are not run: write one class with a method for each"),
    _INTERACTIONS: "interactions are not run: write a class whose reply() answers each turn",
    _LOOPS: "agent loops are not run: write the loop as an agent that asks OpenAI's API (kind Agent), or "
    "a class with the tools, or whose reply() answers each turn",
}
"""Keys of what is not run, and what to write instead."""
_AND_THEN: Final = (
    f"name it in {episodes.ENVIRONMENTS} of the job, and set the key to null and {_ENABLE} to false to convert the rest"
)


def is_agent(settings: ForeignSettings) -> bool:
    """Return whether the model may call functions."""
    return any(settings[key] for key in FILES)


@entry([_ENABLE, *FILES, NAMES, _TURNS, _ANSWERS, *_CUTS, _PARALLEL, _LOOP, _LOOPS, *_TOOL_CLASSES, _INTERACTIONS],
       [episodes.ENVIRONMENTS],
       "functions of `function_tool_path` are `tools`; `function_tools=[NAME, ...]` names them where the file cannot "
       "be read. `maxTurns` is the smaller of `max_assistant_turns` and `max_user_turns` + 1, and 1000 without both",
       **{key.replace(".", "__"): value for key, value in ((_CUTS[0], 256), (_PARALLEL, 1))})  # fmt: skip
def environments(settings: ForeignSettings) -> EntryOutcome:
    _refuse_others(settings)
    keys = (_TURNS, _ANSWERS, *_CUTS, _PARALLEL)
    if not is_agent(settings):
        lost = {key: "a response is one turn without tools" for key in keys if settings.given.get(key) is not None}
        return EntryOutcome(lost=lost, beside_learning=frozenset(lost))
    (file,) = [name for key in FILES if (name := settings.text(key))][:1]
    names = settings.texts(NAMES)
    if not names:
        raise Missing(NAMES, f"it is unset: name the functions of {file} that have @function_tool, as [search,add]")
    module = PurePosixPath(file).stem
    tools = {"name": "tools", "kind": "Python", "tools": [f"{module}:{name}" for name in names]}
    outcome = episodes.outcome([tools], _max_turns(settings), "verl", _look(settings, file))
    lost = {_named(_CUTS[0], settings): "what a function returns is not cut: let it do that"}
    lost |= {_named(_PARALLEL, settings): "every call of a turn is carried out"}
    lost |= {key: "it belongs to max_tool_response_length" for key in _CUTS[1:] if key in settings.given}
    return EntryOutcome(outcome.fields, lost, outcome.to_do)


def _refuse_others(settings: ForeignSettings) -> None:
    for key, instead in _OTHERS.items():
        if settings[key]:
            raise Refused(key, f"{settings[key]}: {instead}, {_AND_THEN}")
    loop = settings[_LOOP]
    if loop not in (None, _SINGLE, _TOOL_AGENT):
        raise Refused(_LOOP, f"{loop}: {_OTHERS[_LOOPS]}, {_AND_THEN}")
    for key, is_set in ((_ENABLE, settings.flag(_ENABLE)), (_LOOP, loop == _TOOL_AGENT)):
        if is_set and not is_agent(settings):
            raise Refused(key, f"no functions are named in {FILES[0]}: set that, or unset this and write a class with "
                          f"tools or reply(), or an agent, for {episodes.ENVIRONMENTS} of the job")  # fmt: skip


def _max_turns(settings: ForeignSettings) -> int | None:
    turns, answers = settings.count(_TURNS), settings.count(_ANSWERS)
    limits = [*([] if turns is None else [turns]), *([] if answers is None else [answers + 1])]
    return min(limits, default=None)


def _named(key: str, settings: ForeignSettings) -> str:
    return key if key in settings.given else f"{key} = {settings.defaults[key]} (by default)"


def _look(settings: ForeignSettings, file: str) -> list[str]:
    look = [
        f"Remove @function_tool and the import of verl from {file}, and submit the job with `--with {file}`.",
        f"Let the functions of {file} return text: verl writes dictionaries as JSON and takes (text, reward, metrics) "
        "apart, and a job writes what they return as str() does.",
    ]
    if settings[_LOOP] != _TOOL_AGENT:
        look.append("Look at domains of spec.environments: without them all rows act in it, and in verl those whose "
                    f"agent_name is {_TOOL_AGENT}.")  # fmt: skip
    return look
