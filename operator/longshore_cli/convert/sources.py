"""Reads a configuration: YAML, JSON, keyword arguments in Python, and overrides `key=value`, all as dotted keys."""

import ast
import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from longshore_cli.simulate.errors import BadInput

_FLOAT: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+", re.ASCII)
"""Numbers as `1e-6`, which YAML 1.1 takes for a text and both systems for a number."""
_CALLS: Final = ("GRPOConfig", "GRPOTrainer", "ModelConfig", "ScriptArguments", "GRPOScriptArguments")
_PASSED_ON: Final = {"args", "train_dataset", "eval_dataset", "processing_class", "callbacks", "optimizers"}
"""Arguments of GRPOTrainer that are objects of the program."""
_COMMAND: Final = ("trl", "grpo")
_FILE: Final = "--config"
_HYDRA: Final = ("--config-name", "--config-path", "--config-dir")


@dataclass(frozen=True)
class ForeignSource:
    """Keys, and those whose values only the program knows."""

    given: Mapping[str, Any]
    computed: tuple[str, ...] = ()


@dataclass
class _Found:
    given: dict[str, Any] = field(default_factory=dict)
    computed: list[str] = field(default_factory=list)


def read(arguments: Sequence[str]) -> ForeignSource:
    """Return a file, with `key=value` over it; `~key` removes a key.

    Raises:
        BadInput: something cannot be read.
    """
    found, arguments = _Found(), list(_settings(arguments))
    files = [Path(one) for one in arguments if not _is_override(one)]
    if len(files) > 1:
        raise BadInput(f"{files[1]} is one file too many, or no setting key=value.")
    for file in files:
        _read_file(file, found)
    for override in filter(_is_override, arguments):
        _override(override, found)
    if not found.given:
        raise BadInput("There is nothing to convert.", "Name a file, or give settings as key=value.")
    return ForeignSource(found.given, tuple(found.computed))


def _settings(arguments: Sequence[str]) -> Iterator[str]:
    """Options of TRL's command line, `--key value` and `--key=value`, as `key=value`.

    `--config FILE` is the file; options of Hydra keep their dashes; the name of the command is left out.
    """
    rest = list(arguments[len(_COMMAND) :] if tuple(arguments[: len(_COMMAND)]) == _COMMAND else arguments)
    while rest:
        key, sign, value = rest.pop(0).partition("=")
        if not key.startswith("--"):
            yield f"{key}{sign}{value}"
            continue
        values = [value] if sign else []
        while not sign and rest and _is_value(rest[0], is_first=not values):
            values.append(rest.pop(0))
        if key == _FILE:
            yield from values or rest[:1]
            rest = rest if values else rest[1:]
            continue
        text = f"[{', '.join(values)}]" if len(values) > 1 else values[0] if values else "true"
        yield f"{key if key.startswith(_HYDRA) else key.removeprefix('--')}={text}"


def _is_value(argument: str, *, is_first: bool) -> bool:
    """Return whether an argument belongs to the option before it: whatever comes first, and more that is no setting."""
    if argument.startswith("--") or _is_file(argument):
        return False
    return is_first or not _is_override(argument)


def _is_override(argument: str) -> bool:
    return argument.startswith(("~", "+", "--")) or ("=" in argument and not _is_file(argument))


def _is_file(argument: str) -> bool:
    try:
        return Path(argument).is_file()
    except OSError:  # It is too long for a name.
        return False


def _read_file(file: Path, found: _Found) -> None:
    if not file.is_file():
        raise BadInput(f"There is no file {file}.")
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".py":
            return _read_python(text, found)
        content = yaml.safe_load(text)
    except (UnicodeDecodeError, OSError, yaml.YAMLError, SyntaxError) as error:
        raise BadInput(f"{file} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise BadInput(f"{file} holds no mapping of settings.")
    found.given |= _flat(content)
    return None


def _read_python(text: str, found: _Found) -> None:
    """Keyword arguments of the calls that configure a training. Nothing is run."""
    for call in ast.walk(ast.parse(text)):
        if not isinstance(call, ast.Call) or _name(call.func) not in _CALLS:
            continue
        for argument in call.keywords:
            if argument.arg is None:
                found.computed.append("**")
            elif argument.arg == "reward_funcs":
                _reward_functions(argument.value, found)
            elif argument.arg not in _PASSED_ON:
                _literal(argument.arg, argument.value, found)


def _literal(key: str, value: ast.expr, found: _Found) -> None:
    try:
        found.given |= _flat({key: ast.literal_eval(value)})
    except ValueError:
        found.computed.append(key)


def _reward_functions(value: ast.expr, found: _Found) -> None:
    """Names of reward functions, which are objects in Python; those that a call makes only the program knows."""
    names = []
    for item in value.elts if isinstance(value, ast.List | ast.Tuple) else [value]:
        if isinstance(item, ast.Constant) and isinstance(item.value, str):
            names.append(item.value)
        elif isinstance(item, ast.Name | ast.Attribute):
            names.append(ast.unparse(item))
        else:
            found.computed.append(f"reward_funcs: {ast.unparse(item)}")
    if names:
        found.given["reward_funcs"] = names


def _name(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]


def _override(text: str, found: _Found) -> None:
    if text.startswith("~"):
        removed = text.removeprefix("~").partition("=")[0]
        found.given = {
            key: value for key, value in found.given.items() if key != removed and not key.startswith(f"{removed}.")
        }
        return
    key, sign, value = text.removeprefix("++").removeprefix("+").partition("=")
    if not sign:
        raise BadInput(f"{text!r} is neither a file nor a setting key=value.")
    try:
        content = yaml.safe_load(value) if value else None
    except yaml.YAMLError as error:
        raise BadInput(f"{text!r}: the value cannot be read: {' '.join(str(error).split())}") from error
    if isinstance(content, dict) and not content:
        found.given[key] = None
        return
    found.given = {known: old for known, old in found.given.items() if not known.startswith(f"{key}.")}
    found.given |= _flat({key: content})


def _flat(content: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys; an empty mapping is unset."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        key, inner = f"{prefix}{name}", _mapping(value)
        if isinstance(inner, dict) and inner:
            flat |= _flat(inner, f"{key}.")
        else:
            flat[key] = None if inner == {} else _number(inner)
    return flat


def _mapping(value: Any) -> Any:
    """Return the mapping where it is written as JSON in a text, as TRL takes it; anything else as it is."""
    if isinstance(value, str) and value.startswith("{"):
        with contextlib.suppress(ValueError):
            return json.loads(value)
    return value


def _number(value: Any) -> Any:
    if isinstance(value, list):
        return [_number(one) for one in value]
    return float(value) if isinstance(value, str) and _FLOAT.fullmatch(value) else value
