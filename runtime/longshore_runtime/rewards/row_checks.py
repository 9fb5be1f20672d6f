"""Check that a row has what a reward function compares responses with."""

from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

from longshore.api.reward import RewardFunction, RewardKind
from longshore_runtime.rewards.code import cases_of
from longshore_runtime.rewards.references import unreadable_reference


def scoring_mistake(function: RewardFunction, fields: Mapping[str, Any], reference: object, source: str) -> str | None:
    """Return why a function can score no response of a row, which `source` names; None: it can.

    `reference`: the answer as it is in the row.
    """
    if function.kind is RewardKind.CODE:
        try:
            cases_of(fields, function.code.tests_field, source)
        except ValueError as error:
            return str(error)
    if function.kind is RewardKind.MATHS and (reason := _unreadable(reference)):
        return f"{source}: {reason}; correct the row, or set data.answerField to where the answers are"
    return None


def _unreadable(reference: object) -> str | None:
    if not _is_readable(reference):
        return f"the reference answer is no text, but a {type(reference).__name__}"
    return unreadable_reference("" if reference is None else str(reference))


def _is_readable(reference: object) -> bool:
    """Return whether its text is mathematics: that of a list of numbers is, and that of a list of texts is not."""
    if isinstance(reference, Sequence) and not isinstance(reference, str | bytes):
        return all(isinstance(one, Number) for one in reference)
    return not isinstance(reference, Mapping | bytes)
