"""TRL's reward functions: its own, those of modules, and those of the script itself."""

import keyword
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from longshore_cli.convert.mapping import EntryOutcome, Fields, ForeignSettings, Missing, Refused, entry
from longshore_cli.convert.trl.objective import ALGORITHM, response_tokens

_FUNCTIONS: Final = "spec.reward.functions"
_REWARD_MODEL: Final = "reward_model_name_or_path"
_NO_NUMBERS: Final = "reward models that give a number are not available; a judge reads and grades"
_OF_TRL: Final = "trl.rewards"
_COPY: Final = "trl_rewards"
"""The module that takes copies of TRL's functions."""
_MATHS: Final = "accuracy_reward"
_OVERLONG: Final = "get_soft_overlong_punishment"
_OVERLONG_LIMIT: Final = 1280
_OVERLONG_BUFFER: Final = 256
"""What TRL's script calls it with, in tokens."""
_OWN: Final = {_MATHS, _OVERLONG, "reasoning_accuracy_reward", "think_format_reward"}
"""Reward functions that TRL's script knows by these names."""


@dataclass(frozen=True)
class _Function:
    name: str
    module: str
    file: str = ""
    """The script that has it."""
    is_guessed: bool = False
    """Whether only its name says that it is TRL's."""

    @property
    def is_of_trl(self) -> bool:
        return f"{self.module}.".startswith(f"{_OF_TRL}.")


@entry(["reward_funcs", "reward_weights", _REWARD_MODEL],
       [_FUNCTIONS, "spec.data.answerField", f"{ALGORITHM}.overlongBufferTokens", f"{ALGORITHM}.overlongPenalty"],
       "`accuracy_reward` of `trl.rewards` is kind Maths with column `solution`; others kind Python with "
       "`signature: TRL`, those of `trl.rewards` too, which are to be copied. A bare name is TRL's where TRL has "
       "it. `get_soft_overlong_punishment` is the penalty of long responses")  # fmt: skip
def rewards(settings: ForeignSettings) -> EntryOutcome:
    if settings[_REWARD_MODEL]:
        raise Refused(_REWARD_MODEL, _NO_NUMBERS)
    names = settings.texts("reward_funcs")
    if not names:
        raise Missing("reward_funcs", "it is unset, and a job needs rewards: name functions as module.function")
    weights = _weights(settings, len(names))
    functions: list[dict[str, Any]] = []
    to_do: list[str] = []
    fields: dict[str, Any] = {}
    for number, name in enumerate(names):
        found = _function(name)
        if found.is_of_trl and found.name == _OVERLONG:
            penalty = _penalty(settings, weights[number] if weights else 1.0)
            fields |= penalty
            to_do += _guessed(found) + ([] if penalty else _without_penalty(settings))
            continue
        to_do += _to_do(found)
        if found.is_of_trl and found.name == _MATHS:
            fields["spec.data.answerField"] = "solution"
            function = {"name": "accuracy", "kind": "Maths"}
        else:
            function = {"name": _label(found.name), "kind": "Python", "importPath": _import_path(found),
                        "signature": "TRL"}  # fmt: skip
        functions.append(function | ({"weight": weights[number]} if weights else {}))
    if not functions:
        raise Refused("reward_funcs", f"{_OVERLONG} alone rewards nothing")
    return EntryOutcome(fields | {_FUNCTIONS: functions}, to_do=tuple(to_do))


def _penalty(settings: ForeignSettings, weight: float) -> Fields:
    """Return the fields of the penalty for long responses, where it ends with the longest response."""
    tokens = response_tokens.convert(settings).fields[f"{ALGORITHM}.maxResponseTokens"]
    if tokens != _OVERLONG_LIMIT:
        return {}
    return {f"{ALGORITHM}.overlongBufferTokens": _OVERLONG_BUFFER, f"{ALGORITHM}.overlongPenalty": weight}


def _without_penalty(settings: ForeignSettings) -> list[str]:
    """Return what is left to do where the penalty of TRL's script ends elsewhere; it may begin beyond all responses."""
    tokens = response_tokens.convert(settings).fields[f"{ALGORITHM}.maxResponseTokens"]
    least = _OVERLONG_LIMIT - _OVERLONG_BUFFER
    if tokens <= least:
        return []
    return [f"Set {ALGORITHM}.overlongBufferTokens and overlongPenalty, which take the place of {_OVERLONG}: in TRL's "
            f"script, rewards fall from {least} to {_OVERLONG_LIMIT} tokens, and in a job over the last tokens of "
            f"maxResponseTokens, {tokens}."]  # fmt: skip


def _weights(settings: ForeignSettings, num_functions: int) -> list[float]:
    weights = settings["reward_weights"] or []
    if weights and (
        not isinstance(weights, list | tuple)
        or len(weights) != num_functions
        or not all(isinstance(one, int | float) for one in weights)
    ):
        raise Refused("reward_weights", f"{weights!r} is not a number for each of reward_funcs")
    return [float(one) for one in weights]


def _function(name: str) -> _Function:
    """Return the function that `module.name`, `module:name`, `FILE.py:name` or a name alone is."""
    if "/" in name and ".py:" not in name:
        raise Refused("reward_funcs", f"{name} is a reward model, and {_NO_NUMBERS}")
    file, is_in_file, function = name.rpartition(".py:")
    if is_in_file:
        return _Function(function, _module_of(file), f"{file}.py")
    module, _, function = name.replace(":", ".").rpartition(".")
    if not module and function in _OWN:
        return _Function(function, _OF_TRL, is_guessed=True)
    return _Function(function, module or "rewards")


def _module_of(file: str) -> str:
    """Return the name that a script has as a module."""
    name = re.sub(r"\W", "_", PurePosixPath(file).name, flags=re.ASCII)
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"rewards_{name}"


def _import_path(found: _Function) -> str:
    return f"{_COPY if found.is_of_trl else found.module}:{found.name}"


def _to_do(found: _Function) -> list[str]:
    """Return what is left to do before the job has a reward function."""
    if found.is_of_trl:
        return _guessed(found) + _to_do_for_trls(found.name)
    if found.file:
        submitted = f"{found.module}.py"
        if PurePosixPath(found.file).name != submitted:
            return [f"Copy {found.name} and what it needs from {found.file} into {submitted}, and submit the job with "
                    f"`--with {submitted}`."]  # fmt: skip
        return [f"Submit the job with `--with {found.file}`, which has {found.name}. Move the function into a file of "
                "its own if importing the script trains or needs TRL, and change importPath."]  # fmt: skip
    if "." in found.module:
        package = found.module.partition(".")[0]
        return [f"Set spec.image to an image that has the package {package}, for {found.module}:{found.name}; "
                "`--with` submits single files."]  # fmt: skip
    return [f"Submit the job with `--with {found.module}.py`, which has {found.name}."]


def _guessed(found: _Function) -> list[str]:
    guessed = f"{found.name} was taken for that of {_OF_TRL}: if it is not, write module.{found.name}."
    return [guessed] if found.is_guessed else []


def _to_do_for_trls(name: str) -> list[str]:
    if name == _MATHS:
        return [f"Look at {_FUNCTIONS}: kind Maths takes the place of {name} of {_OF_TRL}."]
    return [f"Copy {name} and what it needs from {_OF_TRL} into {_COPY}.py.",
            f"Submit the job with `--with {_COPY}.py`, which has {name}."]  # fmt: skip


def _label(function: str) -> str:
    return function.lower().replace("_", "-").strip("-")[:63]
