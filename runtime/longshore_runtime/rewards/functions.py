"""The reward functions by kind. Each takes (prompt, response, answer), some also is_cut, and returns a number."""

import importlib
from collections.abc import Callable
from difflib import get_close_matches
from types import ModuleType

from longshore.api.reward_kind import RewardKind

RewardFunction = Callable[..., float]


def reward_function(kind: RewardKind, import_path: str | None) -> RewardFunction:
    """Return the function of a reward kind; raises what importing its module does, or AttributeError."""
    match kind:
        case RewardKind.TASK:
            from longshore_runtime.tasks import counting

            return lambda prompt, response, answer: counting.score(response, answer)
        case RewardKind.MATHS:
            from longshore_runtime.rewards.maths import answers_agree

            return lambda prompt, response, answer, is_cut: float(
                answers_agree(response, answer, prompt=prompt, is_cut=is_cut)
            )
        case RewardKind.PYTHON:
            assert import_path is not None, "validation asks for one"
            module, name = import_path.split(":")
            return _named(importlib.import_module(module), name)
        case _:
            raise AssertionError(f"kind {kind} is not scored in a process of its own")


def _named(module: ModuleType, name: str) -> RewardFunction:
    try:
        function: RewardFunction = getattr(module, name)
    except AttributeError as error:
        near = get_close_matches(name, [known for known, value in vars(module).items() if callable(value)], 1)
        fix = f"; did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"module {module.__name__!r} has no {name!r}{fix}") from error
    return function
