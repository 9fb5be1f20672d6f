"""TRL's tools and environments."""

from collections.abc import Sequence
from typing import Any, Final

from longshore_cli.convert import episodes
from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, Refused, entry
from longshore_cli.convert.trl import origins
from longshore_cli.convert.trl.origins import MADE, Origin

_TOOLS: Final = "tools"
_CLASS: Final = "environment_factory"
_CALLS: Final = "max_tool_calling_iterations"
_COLUMN: Final = "environment"
"""Column that chooses one of several environments."""
_TEMPLATE: Final = (
    "Set spec.data.chat.template if the model's template changes earlier turns, as Qwen3's does with enable_thinking: "
    "false. TRL then takes one of its own, such as trl/chat_templates/qwen3_training.jinja, and a job would be refused."
)
ROW: Final = '{"prompt": [{"role": "user", "content": ""}], "answer": ""}'
"""Row for a prompt that an environment writes itself."""


def is_agent(settings: ForeignSettings) -> bool:
    """Return whether responses act in an environment."""
    return has_class(settings) or bool(settings[_TOOLS])


def has_class(settings: ForeignSettings) -> bool:
    """Return whether responses act in environments of classes, which may reward them."""
    return bool(class_names(settings))


def class_names(settings: ForeignSettings) -> list[str]:
    """Return the names by which rows choose classes of environments; that of a single class is empty."""
    return list(settings.below(_CLASS)) or ([""] if settings[_CLASS] else [])


@entry([_TOOLS, _CLASS, f"{_CLASS}.*", _CALLS], [episodes.ENVIRONMENTS, "spec.data.domainField"],
       "functions are `tools`, a class is the `importPath`. Of several classes, each has the rows that name it in the "
       "column `environment`. `maxTurns` is one more than the rounds of calls, and 1000 where TRL "
       "has no limit")  # fmt: skip
def environments(settings: ForeignSettings) -> EntryOutcome:
    calls = settings.count(_CALLS, least=0)
    if not is_agent(settings):
        lost = {} if settings[_CALLS] is None else {_CALLS: "a response is one turn without tools"}
        return EntryOutcome(lost=lost, beside_learning=frozenset(lost))
    turns = None if calls is None else calls + 1
    tools = [_origin(_TOOLS, name) for name in settings.texts(_TOOLS)]
    if not has_class(settings):
        functions = {"name": "tools", "kind": "Python", "tools": [one.import_path for one in tools]}
        return episodes.outcome([functions], turns, "TRL", [*origins.to_do(tools), _TEMPLATE])
    if tools:
        raise Refused(_TOOLS, f"an environment is functions or a class: make them methods of the one of {_CLASS}")
    several = settings.below(_CLASS)
    if not several:
        (single,) = _classes([settings.text(_CLASS)])
        return episodes.outcome([_environment(single.name, single)], turns, "TRL", _look([single]))
    classes = _classes(list(several.values()))
    found = [_environment(name, one) | {"domains": [name]} for name, one in zip(several, classes, strict=True)]
    look = f"See that reset of each class takes {_COLUMN}, which a job hands on like every column, and TRL does not."
    outcome = episodes.outcome(found, turns, "TRL", [*_look(classes), look])
    return EntryOutcome(outcome.fields | {"spec.data.domainField": _COLUMN}, to_do=outcome.to_do)


def _classes(names: Sequence[Any]) -> list[Origin]:
    if not all(isinstance(name, str) for name in names):
        raise Refused(_CLASS, f"{list(names)!r} names no classes: write module.Class, or name=module.Class of each")
    return [_origin(_CLASS, name) for name in names]


def _origin(key: str, name: str) -> Origin:
    if name.endswith(MADE):
        what = "class or a function that returns an instance" if key == _CLASS else "function"
        raise Refused(key, f"{name}: a job imports it, so write a {what} at the top level of a file, and name that")
    return origins.origin(name, "environments" if key == _CLASS else "tools")


def _environment(name: str, found: Origin) -> dict[str, Any]:
    return {"name": origins.label(name), "kind": "Python", "importPath": found.import_path}


def _look(classes: Sequence[Origin]) -> list[str]:
    rows = (
        f"Give each row a prompt and an answer, which a job needs: {ROW} in at least promptsPerStep rows where reset "
        "returns the prompt."
    )
    return [*origins.to_do(classes), rows, _TEMPLATE]


ENTRIES: Final[tuple[MappingEntry, ...]] = (environments,)
