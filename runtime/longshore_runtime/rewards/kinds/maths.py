"""Rewards by comparing answers as mathematics: 1 if they agree, else 0."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any

from longshore_runtime.errors import UserError
from longshore_runtime.rewards.kinds.kind import ChildKind
from longshore_runtime.rewards.maths.references import unreadable_reference

if TYPE_CHECKING:
    from longshore.api.reward import RewardFunction


class MathsKind(ChildKind):
    """Compares the answer of a response with that of its row."""

    is_proven = True
    compares_with_rows = True
    is_forked = True

    def load(self, import_path: str | None) -> Callable[..., float]:
        """Return the comparison, whose imports take 0.4 s of CPU time."""
        from longshore_runtime.rewards.maths.agreement import answers_agree

        return lambda prompt, response, answer, is_cut: float(
            answers_agree(response, answer, prompt=prompt, is_cut=is_cut)
        )

    def read_row(
        self, function: "RewardFunction", fields: Mapping[str, Any], reference: object, source: str
    ) -> Mapping[str, Any]:
        """Return nothing: the reference can be compared with."""
        if (reason := _unreadable(reference)) is not None:
            raise UserError(f"{source}: {reason}; correct the row, or set data.answerField to where the answers are")
        return {}


def _unreadable(reference: object) -> str | None:
    if not _is_readable(reference):
        return f"the reference answer is no text, but a {type(reference).__name__}"
    return unreadable_reference("" if reference is None else str(reference))


def _is_readable(reference: object) -> bool:
    """Return whether its text is mathematics: that of a list of numbers is, and that of a list of texts is not."""
    if isinstance(reference, Sequence) and not isinstance(reference, str | bytes):
        return all(isinstance(one, Number) for one in reference)
    return not isinstance(reference, Mapping | bytes)
