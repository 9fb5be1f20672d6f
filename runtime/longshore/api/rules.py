"""Rules that JSON schema cannot express, such as those over several fields.

Each is written once: the API server checks its CEL expression and pydantic its predicate, with the same sentence.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

CEL_RULES: Final = "x-kubernetes-validations"
BROKEN_RULE: Final = "broken_rule"
"""Type of the pydantic error."""

M = TypeVar("M")


@dataclass(frozen=True)
class Unchecked:
    """Stands for the side of a rule that cannot check it."""

    reason: str


@dataclass(frozen=True)
class Rule(Generic[M]):
    """What a value must satisfy, for both sides."""

    field: str
    """The field to blame, by its path within the value; empty: the value itself."""
    cel: str | Unchecked
    """Checked by the API server."""
    holds: Callable[[M], bool] | Unchecked
    """Checked by pydantic, once every field of the value is valid."""
    message: str
    """One sentence with the field and the fix."""


def belongs(field: str, selector: str, choice: str, pair: Callable[[M], tuple[str, object]]) -> Rule[M]:
    """`field` is set with one choice of `selector` and with no other; `pair`: what the selector and the field hold."""

    def holds(value: M) -> bool:
        chosen, found = pair(value)
        return (chosen == choice) == (found is not None)

    message = f"{field} belongs to {selector} {choice}: set both or neither"
    return Rule(field, f"(self.{selector} == '{choice}') == has(self.{field})", holds, message)


def check(rules: Iterable[Rule[M]], value: M) -> M:
    """Return the value, once every rule holds.

    Raises:
        ValidationError: with each rule that does not; pydantic merges it into the error of the model around the value.
    """
    errors = [
        InitErrorDetails(
            type=PydanticCustomError(BROKEN_RULE, "{message}", {"message": rule.message}),
            loc=tuple(rule.field.split(".")) if rule.field else (),
            input=value,
        )
        for rule in rules
        if not isinstance(rule.holds, Unchecked) and not rule.holds(value)
    ]
    if errors:
        raise ValidationError.from_exception_data(type(value).__name__, errors)
    return value


def cel(rules: Iterable[Rule[Any]]) -> dict[str, Any]:
    """JSON schema extension with the rules that the API server checks; empty where there are none."""
    entries = [
        {"rule": rule.cel, "message": rule.message} | ({"fieldPath": f".{rule.field}"} if rule.field else {})
        for rule in rules
        if isinstance(rule.cel, str)
    ]
    return {CEL_RULES: entries} if entries else {}


CHANGES_WHILE_SUSPENDED: Final = "may change only while the job is suspended"
"""Part of the refusal of a change to a running job."""
TRANSITION: Final = Unchecked("a model does not know the one that it replaces")
IMMUTABLE: Final = cel(
    [Rule("", "self == oldSelf", TRANSITION, "the field is immutable: create a new RLJob instead of changing it")]
)
