"""TRL's reward functions: its own, those of modules, and those of the script itself."""

from dataclasses import dataclass
from typing import Any, Final

from longshore_cli.convert.mapping import EntryOutcome, Fields, ForeignSettings, Missing, Refused, entry
from longshore_cli.convert.trl import origins
from longshore_cli.convert.trl.environments import class_names
from longshore_cli.convert.trl.objective import ALGORITHM, response_tokens
from longshore_cli.convert.trl.origins import READS_ENVIRONMENTS, Origin

_FUNCTIONS: Final = "spec.reward.functions"
_REWARD_MODEL: Final = "reward_model_name_or_path"
_GET_REWARD: Final = "get_reward"
_ENVIRONMENT: Final[dict[str, Any]] = {"name": "environment", "kind": "Environment"}
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
class _Function(Origin):
    is_guessed: bool = False
    """Whether only its name says that it is TRL's."""

    @property
    def is_of_trl(self) -> bool:
        return f"{self.module}.".startswith(f"{_OF_TRL}.")

    @property
    def import_path(self) -> str:
        return f"{_COPY}:{self.name}" if self.is_of_trl else super().import_path


@entry(["reward_funcs", "reward_weights", _REWARD_MODEL, _GET_REWARD, f"{_GET_REWARD}.*"],
       [_FUNCTIONS, "spec.data.answerField", f"{ALGORITHM}.overlongBufferTokens", f"{ALGORITHM}.overlongPenalty"],
       "`accuracy_reward` of `trl.rewards` is kind Maths with column `solution`; others kind Python with "
       "`signature: TRL`, those of `trl.rewards` too, which are to be copied. A bare name is TRL's where TRL has "
       "it. `get_soft_overlong_punishment` is the penalty of long responses. `get_reward` of an environment is kind "
       "Environment")  # fmt: skip
def rewards(settings: ForeignSettings) -> EntryOutcome:
    if settings[_REWARD_MODEL]:
        raise Refused(_REWARD_MODEL, _NO_NUMBERS)
    names = settings.texts("reward_funcs")
    weights = _weights(settings, len(names))
    functions: list[dict[str, Any]] = []
    to_do: list[str] = []
    fields: dict[str, Any] = {}
    for number, name in enumerate(names):
        if name.endswith(READS_ENVIRONMENTS):
            to_do.append(_into_get_reward(name, weights[number] if weights else 1.0))
            continue
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
            function = {"name": origins.label(found.name), "kind": "Python", "importPath": found.import_path,
                        "signature": "TRL"}  # fmt: skip
        functions.append(function | ({"weight": weights[number]} if weights else {}))
    if any(name.endswith(READS_ENVIRONMENTS) for name in names):
        functions.append(_ENVIRONMENT)
    else:
        others, left = _of_environments(settings, has_others=bool(functions))
        functions += others
        to_do += left
    if not functions and names:
        raise Refused("reward_funcs", f"{_OVERLONG} alone rewards nothing")
    if not functions:
        raise Missing("reward_funcs", "it is unset, and a job needs rewards: name functions as module.function")
    return EntryOutcome(fields | {_FUNCTIONS: functions}, to_do=tuple(to_do))


def _of_environments(settings: ForeignSettings, *, has_others: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the function for rewards that environments give, as far as that is known, and what is left to do.

    Args:
        settings: keys that say which classes have `get_reward`.
        has_others: whether other functions score all rows. Without them, classes of which nothing is known are taken
            to give rewards.
    """
    gives = {name: _gives_reward(settings, name) for name in class_names(settings)}
    giving = [name for name, known in gives.items() if known or (known is None and not has_others)]
    if not giving:
        functions = []
    elif len(giving) == len(gives):
        functions = [_ENVIRONMENT]
    else:
        functions = [_ENVIRONMENT | {"domains": giving}]
    left = [_perhaps(name) if has_others else _assumed(name) for name, known in gives.items() if known is None]
    if functions and not has_others:
        left += [_unrewarded(name) for name in gives if name not in giving]
    return functions, left


def _gives_reward(settings: ForeignSettings, name: str) -> bool | None:
    """Return whether a class has `get_reward`; None: nothing is known of that."""
    key = f"{_GET_REWARD}.{name}"
    if settings[key] is None:
        key = _GET_REWARD
    return None if settings[key] is None else settings.flag(key)


def _perhaps(name: str) -> str:
    own = f"name: environment-{origins.label(name)}, kind: Environment, domains: [{name}]"
    function = own if name else "name: environment, kind: Environment"
    return (
        f"Add {{{function}}} to {_FUNCTIONS} if {_environment(name)} has get_reward: TRL adds what it returns to other "
        "rewards."
    )


def _assumed(name: str) -> str:
    key = f"{_GET_REWARD}.{name}" if name else _GET_REWARD
    return (
        f"See that {_environment(name)} has get_reward, which was assumed because no other reward is named: if it has "
        f"none, convert again with {key}=false and reward_funcs=module.function."
    )


def _unrewarded(name: str) -> str:
    return (
        f"Add a function with domains: [{name}] to {_FUNCTIONS}: {_environment(name)} has no get_reward, and nothing "
        "else scores its rows."
    )


def _environment(name: str) -> str:
    return f"the environment {name}" if name else "the environment"


def _into_get_reward(name: str, weight: float) -> str:
    function = origins.origin(name.removesuffix(READS_ENVIRONMENTS), "").name
    times = f", times its weight {weight:g}" if weight != 1 else ""
    return (
        f"Let get_reward() of the environment return what {function} reads of its environments{times}: kind "
        "Environment takes the place of the function, which would run in another process than the environments."
    )


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
    if name in _OWN:
        return _Function(name, _OF_TRL, is_guessed=True)
    found = origins.origin(name, "rewards")
    return _Function(found.name, found.module, found.file)


def _to_do(found: _Function) -> list[str]:
    """Return what is left to do before the job has a reward function."""
    return _guessed(found) + _to_do_for_trls(found.name) if found.is_of_trl else origins.to_do([found])


def _guessed(found: _Function) -> list[str]:
    guessed = f"{found.name} was taken for that of {_OF_TRL}: if it is not, write module.{found.name}."
    return [guessed] if found.is_guessed else []


def _to_do_for_trls(name: str) -> list[str]:
    if name == _MATHS:
        return [f"Look at {_FUNCTIONS}: kind Maths takes the place of {name} of {_OF_TRL}."]
    return [f"Copy {name} and what it needs from {_OF_TRL} into {_COPY}.py.",
            f"Submit the job with `--with {_COPY}.py`, which has {name}."]  # fmt: skip
