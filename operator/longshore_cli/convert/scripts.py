"""Reads the calls of a Python script that configure a training of TRL. Nothing is run."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from longshore_cli.convert import constants
from longshore_cli.convert.bindings import Bindings, Unclear
from longshore_cli.convert.trl.origins import MADE, READS_ENVIRONMENTS
from longshore_cli.simulate.errors import BadInput

_CONFIG: Final = "GRPOConfig"
_TRAINER: Final = "GRPOTrainer"
_SCRIPT: Final = ("dataset_name",)
_CALLS: Final[Mapping[str, tuple[str, ...]]] = {
    _CONFIG: ("output_dir",),
    _TRAINER: ("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class",
               "reward_processing_classes", "callbacks", "optimizers", "quantization_config", "peft_config", "tools",
               "rollout_func", "environment_factory"),
    "ModelConfig": ("model_name_or_path",),
    "ScriptArguments": _SCRIPT,
    "GRPOScriptArguments": _SCRIPT,
}  # fmt: skip
"""Calls that are read, and the names of their arguments by position."""
_PASSED_ON: Final = {"args", "train_dataset", "eval_dataset"}
"""Arguments of GRPOTrainer that are objects of the program."""
_WHATEVER: Final = {
    "processing_class", "callbacks", "optimizers", "quantization_config", "peft_config", "rollout_func",
}  # fmt: skip
"""Arguments for which it is enough to know that they are set."""
_OF_OPTIONS: Final = {"get_peft_config", "get_quantization_config"}
"""Functions of TRL that return None unless options of its command line ask for more."""
_LOADERS: Final = {f"{owner}.from_pretrained" for owner in ("FastLanguageModel", "FastModel", "FastVisionModel")}
_LOADED: Final = {"model_name": "model_name_or_path", "load_in_4bit": "load_in_4bit", "load_in_8bit": "load_in_8bit"}
"""Arguments of these functions of Unsloth, the first of which may have no name, and TRL's keys for them."""
_ADAPTER: Final = "get_peft_model"
_ARGUMENTS: Final = "args"
_REWARDS: Final = "reward_funcs"
_TOOLS: Final = "tools"
_CLASS: Final = "environment_factory"
_GET_REWARD: Final = "get_reward"
"""Method of an environment, and the key that says whether it has that: for each where there are several."""
_ENVIRONMENTS: Final = "environments"
"""Argument of reward functions."""


@dataclass
class Script:
    """Arguments and their values, and those whose values only the program knows."""

    given: dict[str, Any] = field(default_factory=dict)
    computed: list[str] = field(default_factory=list)


def read(text: str, file: str) -> Script:
    """Return what a script configures.

    Raises:
        SyntaxError, ValueError: it is no Python.
        BadInput: it configures nothing, or several trainings.
    """
    tree, found = ast.parse(text), Script()
    bindings = Bindings(tree, file)
    calls = _calls(tree, bindings, file)
    for name, call in calls.items():
        for key, value in _arguments(name, call, bindings, found):
            if key == _REWARDS:
                _reward_functions(value, bindings, tree, found)
            elif key in (_TOOLS, _CLASS):
                _agent(key, value, bindings, tree, found)
            elif key == _ARGUMENTS and _CONFIG not in calls:
                found.computed.append(
                    f"{key} = {ast.unparse(value)}, since the script does not call {_CONFIG}: "
                    "let it write that with to_json_string(), and convert the file"
                )
            elif key not in _PASSED_ON:
                _constant(key, value, bindings, found)
    _unsloth(tree, bindings, found)
    return found


def _unsloth(tree: ast.Module, bindings: Bindings, found: Script) -> None:
    """Note the model and the adapter of a script of Unsloth or PEFT, which makes both before the trainer."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = ast.unparse(node.func)
        if function.rpartition(".")[2] == _ADAPTER:
            found.given["use_peft"] = True
        elif function in _LOADERS:
            arguments = dict(zip([*_LOADED][:1], node.args, strict=False)) | {
                one.arg: one.value for one in node.keywords
            }
            for name, key in _LOADED.items():
                if (value := arguments.get(name)) is not None and key not in found.given:
                    _constant(key, value, bindings, found)
            found.computed = [
                one for one in found.computed if one != "model" or "model_name_or_path" not in found.given
            ]


def _calls(tree: ast.Module, bindings: Bindings, file: str) -> dict[str, ast.Call]:
    """Return one call for each name; equal calls are one."""
    found: dict[str, list[ast.Call]] = defaultdict(list)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := _name(node.func, bindings)) in _CALLS:
            found[name].append(node)
    if not found:
        *names, last = (f"{name}(...)" for name in _CALLS)
        raise BadInput(
            f"{file} has no call of {', '.join(names)} or {last}, which are read.",
            "Convert the YAML file or the options that the script takes, or give settings as key=value.",
        )
    for name, calls in found.items():
        if len({ast.dump(call) for call in calls}) > 1:
            raise BadInput(
                f"{file} has several calls of {name}(...), in lines {_joined(calls)}, with different arguments: keep "
                "one of them, or give the settings as key=value in place of the script."
            )
    return {name: calls[0] for name, calls in found.items()}


def _joined(calls: Sequence[ast.Call]) -> str:
    *first, last = (str(line) for line in sorted(call.lineno for call in calls))
    return f"{', '.join(first)} and {last}"


def _arguments(name: str, call: ast.Call, bindings: Bindings, found: Script) -> Iterator[tuple[str, ast.expr]]:
    """Yield the arguments of a call; what cannot be read of them is noted."""
    positions = _CALLS[name]
    for number, argument in enumerate(call.args):
        if isinstance(argument, ast.Starred) or number >= len(positions):
            found.computed += [f"{ast.unparse(one)} in {name}(...)" for one in call.args[number:]]
            break
        yield positions[number], argument
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg, keyword.value
            continue
        try:
            yield from list(constants.items(keyword.value, bindings))
        except Unclear:
            found.computed.append(f"**{ast.unparse(keyword.value)} in {name}(...), which may set any key")


def _constant(key: str, value: ast.expr, bindings: Bindings, found: Script) -> None:
    try:
        found.given[key] = constants.value(value, bindings)
    except Unclear:
        if key not in _WHATEVER:
            found.computed.append(key)
        elif isinstance(value, ast.Call) and _name(value.func, bindings) in _OF_OPTIONS:
            found.computed.append(f"{key} = {ast.unparse(value)}, which options of the script decide")
        else:
            found.given[key] = ast.unparse(value)


def _reward_functions(value: ast.expr, bindings: Bindings, tree: ast.Module, found: Script) -> None:
    """Note the sources of reward functions, which are Python objects; only the program knows those of a call."""
    names = []
    for item in _elements(value, bindings):
        if isinstance(item, ast.Constant) and isinstance(item.value, str):
            names.append(item.value)
            continue
        try:
            origin = bindings.origin(item)
        except Unclear:
            found.computed.append(f"{_REWARDS}: {ast.unparse(item)}")
            continue
        definition = _definition(origin, tree)
        reads = definition is not None and any(
            (isinstance(node, ast.arg) and node.arg == _ENVIRONMENTS)
            or (isinstance(node, ast.Constant) and node.value == _ENVIRONMENTS)
            for node in ast.walk(definition)
        )
        names.append(f"{origin}{READS_ENVIRONMENTS}" if reads else origin)
    if names:
        found.given[_REWARDS] = names


def _agent(key: str, value: ast.expr, bindings: Bindings, tree: ast.Module, found: Script) -> None:
    """Note the sources of tools, or of one or several environments."""
    if isinstance(value, ast.Constant):
        found.given[key] = value.value
    elif key == _TOOLS:
        found.given[key] = [_origin(item, bindings) for item in _elements(value, bindings)]
    else:
        try:
            classes = {name: _origin(one, bindings) for name, one in constants.items(value, bindings)}
        except Unclear:
            classes = {"": _origin(value, bindings)}
        found.given[key] = classes.get("", classes)
        gives = {name: _gives_reward(_definition(one, tree)) for name, one in classes.items()}
        known = {name: value for name, value in gives.items() if value is not None}
        if known:
            found.given[_GET_REWARD] = known.get("", known)


def _origin(expression: ast.expr, bindings: Bindings) -> str:
    try:
        return bindings.origin(expression)
    except Unclear:
        return f"{ast.unparse(expression)}{MADE}"


def _definition(origin: str, tree: ast.Module) -> ast.stmt | None:
    """Return the definition of what has its origin in the script itself."""
    _, is_in_file, name = origin.rpartition(".py:")
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = [node for node in tree.body if isinstance(node, kinds) and node.name == name]
    return found[-1] if is_in_file and found else None


def _gives_reward(definition: ast.stmt | None) -> bool | None:
    """Return whether the class of an environment has a reward; None: the script does not say."""
    if not isinstance(definition, ast.ClassDef):
        return None
    names = {one.name for one in definition.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    return True if _GET_REWARD in names else None if definition.bases else False


def _elements(value: ast.expr, bindings: Bindings) -> list[ast.expr]:
    """Return the elements of a list, also of one that a name stands for; of anything else itself."""
    listed = value
    if isinstance(value, ast.Name):
        try:
            listed = bindings.constant(value.id)
        except Unclear:
            return [value]
    return listed.elts if isinstance(listed, ast.List | ast.Tuple) else [value]


def _name(function: ast.expr, bindings: Bindings) -> str:
    """Return the name of a function where it comes from."""
    try:
        return bindings.origin(function).rpartition(".")[2]
    except Unclear:
        return ast.unparse(function).rpartition(".")[2]
