"""The reward functions by kind. Each takes (prompt, response, answer), some also is_cut, and returns a number."""

import importlib
from collections.abc import Callable

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
            function: RewardFunction = getattr(importlib.import_module(module), name)
            return function
        case _:
            raise AssertionError(f"kind {kind} is not scored in a process of its own")
