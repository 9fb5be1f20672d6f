"""Reads a configuration: YAML, JSON, keyword arguments in Python, and overrides `key=value`, all as dotted keys."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from longshore_cli.convert import function_tools, hydra, scripts
from longshore_cli.convert.mapping import ForeignSettings
from longshore_cli.convert.verl import environments
from longshore_cli.simulate.errors import BadInput

_FLOAT: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+", re.ASCII)
"""Numbers as `1e-6`, which YAML 1.1 takes for a text and both systems for a number."""
_COMMAND: Final = ("trl", "grpo")
_FILE: Final = "--config"
_INSTEAD: Final = (
    "Replace `python3 -m verl.trainer.main_ppo` or `trl grpo` in it with `longshore convert`, and run the script."
)
_HYDRA: Final = ("--config-name", "--config-path", "--config-dir")
_CONTAINERS: Final = ("{", "[")


@dataclass(frozen=True)
class ForeignSource:
    """Keys, and those whose values only the program knows."""

    given: Mapping[str, Any]
    computed: tuple[str, ...] = ()


@dataclass
class _Found:
    given: dict[str, Any] = field(default_factory=dict)
    computed: list[str] = field(default_factory=list)
    settings: set[str] = field(default_factory=set)
    """Keys that settings decide, whatever a file says."""


def read(arguments: Sequence[str]) -> ForeignSource:
    """Return a file, with `key=value` over it; `~key` removes a key.

    Raises:
        BadInput: something cannot be read.
    """
    found, settings = _Found(), list(_settings(arguments))
    files = [Path(one) for one in settings if isinstance(one, str) and not _is_override(one)]
    if len(files) > 1:
        raise BadInput(f"{files[1]} is one file too many, or no setting key=value.")
    for file in files:
        _read_file(file, found)
    for setting in settings:
        if isinstance(setting, _Option):
            found.settings.add(setting.key)
            _replace(setting.key, _of_option(setting), found)
        elif _is_override(setting):
            _override(setting, found)
    if not found.given and files:
        raise BadInput(_without_values(files[0], found), _AS_JSON)
    if not found.given:
        raise BadInput("There is nothing to convert.", "Name a file, or give settings as key=value.")
    _name_functions(found)
    computed = (one for one in found.computed if one.partition(":")[0] not in found.settings)
    return ForeignSource(found.given, tuple(computed))


def _name_functions(found: _Found) -> None:
    """Name the functions of verl's file of tools, if it is here."""
    settings = ForeignSettings(found.given)
    file = next((value for key in environments.FILES if (value := settings.plain(key))), None)
    if environments.NAMES in found.given or not isinstance(file, str) or not _is_file(file):
        return
    try:
        found.given[environments.NAMES] = function_tools.names(Path(file).read_text(encoding="utf-8"))
    except (ValueError, OSError, SyntaxError) as error:
        raise BadInput(f"{file} cannot be read: {' '.join(str(error).split())}") from error


_AS_JSON: Final = (
    "Let the script write its GRPOConfig with to_json_string() and convert that file, or give the settings as "
    "key=value."
)


def _without_values(file: Path, found: _Found) -> str:
    if not found.computed:
        return f"{file} sets nothing."
    keys = (re.split(r"[: ]", one, maxsplit=1)[0] for one in found.computed)
    return f"{file} computes all that it configures ({', '.join(dict.fromkeys(keys))}), and scripts are not run."


@dataclass(frozen=True)
class _Option:
    """An option of TRL's command line, `--key value` or `--key=value`, or one of Hydra, whose key keeps its dashes."""

    key: str
    values: tuple[str, ...]


def _settings(arguments: Sequence[str]) -> Iterator[str | _Option]:
    """Yield files, settings and options; `--config FILE` is a file, and the name of the command is left out."""
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
        yield _Option(key if key.startswith(_HYDRA) else key.removeprefix("--"), tuple(values))


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
    if file.is_dir():
        raise BadInput(f"{file} is a directory: name a file in it.")
    if not file.is_file():
        raise BadInput(f"There is no file {file}.")
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".py":
            return _read_script(file, text, found)
        if file.suffix == ".sh" or text.startswith("#!"):
            raise BadInput(f"{file} is a shell script, which is not run here.", _INSTEAD)
        content = yaml.load(text, _Loader)
        if isinstance(content, dict):
            found.given |= _flat(_plain(content))
            return None
    except (ValueError, OSError, yaml.YAMLError, SyntaxError) as error:
        raise BadInput(f"{file} cannot be read: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise BadInput(f"{file} cannot be read: it is nested too deeply.") from error
    raise BadInput(f"{file} holds no mapping of settings.")


class _Loader(yaml.SafeLoader):
    """YAML as both systems read it: dates are texts."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _read_script(file: Path, text: str, found: _Found) -> None:
    script = scripts.read(text, str(file))
    found.given |= _flat(_plain(script.given))
    found.computed += script.computed


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
        content = _setting(value)
    except hydra.Unreadable as error:
        raise BadInput(f"{text!r}: the value cannot be read: {error}.") from error
    found.settings.add(key)
    if isinstance(content, dict):
        found.given |= _flat({key: content})  # Hydra adds it to the mapping that was there.
    else:
        _replace(key, content, found)


def _setting(text: str) -> Any:
    """Return what Hydra or, as a mapping in JSON, TRL reads."""
    if text.startswith("{"):
        with contextlib.suppress(ValueError):
            return json.loads(text)
    return hydra.read(text) if text.strip() else None


def _of_option(option: _Option) -> Any:
    """Return the value of an option; a text that begins like a mapping or a list and is none stays a text."""
    if len(option.values) != 1:
        return [hydra.primitive(one) for one in option.values] or True
    (text,) = option.values
    if not text.startswith(_CONTAINERS):
        return hydra.primitive(text)
    try:
        return _setting(text)
    except hydra.Unreadable:
        return text


def _replace(key: str, value: Any, found: _Found) -> None:
    found.given = {known: old for known, old in found.given.items() if not known.startswith(f"{key}.")}
    found.given |= _flat({key: value})


def _flat(content: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return the settings by dotted keys; an empty mapping is unset."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{key}.")
        else:
            flat[key] = None if value == {} else value
    return flat


def _plain(value: Any) -> Any:
    """Return what both systems read where YAML and Python have a text: a mapping in JSON, a number as `1e-6`."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, str) and value.startswith("{"):
        with contextlib.suppress(ValueError):
            return _plain(json.loads(value))
    return float(value) if isinstance(value, str) and _FLOAT.fullmatch(value) else value
