"""Reads the calls of a Python script that configure a training of TRL. Nothing is run."""

import ast
from dataclasses import dataclass, field
from typing import Any, Final

from longshore_cli.convert.bindings import Bindings, Unclear

_CALLS: Final = ("GRPOConfig", "GRPOTrainer", "ModelConfig", "ScriptArguments", "GRPOScriptArguments")
_PASSED_ON: Final = {"args", "train_dataset", "eval_dataset", "processing_class", "callbacks", "optimizers"}
"""Arguments of GRPOTrainer that are objects of the program."""
_REWARDS: Final = "reward_funcs"


@dataclass
class Script:
    """Arguments and their values, and those whose values only the program knows."""

    given: dict[str, Any] = field(default_factory=dict)
    computed: list[str] = field(default_factory=list)


def read(text: str, file: str) -> Script:
    """Return what a script configures; raises SyntaxError, ValueError."""
    tree, found = ast.parse(text), Script()
    bindings = Bindings(tree, file)
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or _name(call.func) not in _CALLS:
            continue
        for argument in call.keywords:
            if argument.arg is None:
                found.computed.append("**")
            elif argument.arg == _REWARDS:
                _reward_functions(argument.value, bindings, found)
            elif argument.arg not in _PASSED_ON:
                _literal(argument.arg, argument.value, found)
    return found


def _literal(key: str, value: ast.expr, found: Script) -> None:
    try:
        found.given[key] = ast.literal_eval(value)
    except ValueError:
        found.computed.append(key)


def _reward_functions(value: ast.expr, bindings: Bindings, found: Script) -> None:
    """Where reward functions are, which are objects in Python; those that a call makes only the program knows."""
    names = []
    for item in value.elts if isinstance(value, ast.List | ast.Tuple) else [value]:
        if isinstance(item, ast.Constant) and isinstance(item.value, str):
            names.append(item.value)
            continue
        try:
            names.append(bindings.origin(item))
        except Unclear:
            found.computed.append(f"{_REWARDS}: {ast.unparse(item)}")
    if names:
        found.given[_REWARDS] = names


def _name(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]
