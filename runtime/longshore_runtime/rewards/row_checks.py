"""Whether a row has what a reward function compares responses with."""

from collections.abc import Mapping
from typing import Any

from longshore.api.reward import RewardFunction, RewardKind
from longshore_runtime.rewards.code import cases_of
from longshore_runtime.rewards.references import unreadable_reference


def scoring_mistake(function: RewardFunction, fields: Mapping[str, Any], answer: str, source: str) -> str | None:
    """Return why a function can score no response of a row, which `source` names; None: it can."""
    if function.kind is RewardKind.CODE:
        try:
            cases_of(fields, function.code.tests_field, source)
        except ValueError as error:
            return str(error)
    if function.kind is RewardKind.MATHS and (reason := unreadable_reference(answer)):
        return f"{source}: {reason}; correct the row, or set data.answerField to where the answers are"
    return None
