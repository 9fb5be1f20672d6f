"""Rules that a JSON schema cannot express, such as those over several fields.

A rule is an expression in CEL about a value as manifests write it. The API server evaluates it on every write, and
pydantic evaluates the same expression on every value that is made in Python.
"""

import contextlib
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional
from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

CEL_RULES: Final = "x-kubernetes-validations"
BROKEN_RULE: Final = "broken_rule"
"""Type of the pydantic error."""
_INTEGERS: Final = 2**63
"""CEL and Go have integers of 64 bits with a sign."""
_OLD: Final = re.compile(r"\boldSelf\b")


@dataclass(frozen=True, eq=False)
class Rule:
    """What a value must satisfy."""

    field: str
    """The field to blame, by its path within the value; empty: the value itself."""
    cel: str
    """Expression over `self`. One that reads `oldSelf` as well is about changes, which only the API server sees."""
    message: str
    """One sentence with the field and the fix."""
    in_schema: bool = True
    """Whether the API server evaluates the rule. False: its schema says the same, or hides the value from rules."""


def belongs(field: str, selector: str, choice: str) -> Rule:
    """Return the rule that `field` is set with one choice of `selector` and with no other."""
    message = f"{field} belongs to {selector} {choice}: set both or neither"
    return Rule(field, f"(self.{selector} == '{choice}') == has(self.{field})", message)


def have_different_names(field: str) -> Rule:
    """Return the rule that no two items of a list have one name; the list is a map by name for the API server."""
    twice = f"!has(self.{field}) || self.{field}.all(one, self.{field}.exists_one(other, other.name == one.name))"
    return Rule(field, twice, f"{field} must have different names: rename one", in_schema=False)


def check(rules: tuple[Rule, ...], value: Any, title: str) -> None:
    """Check a value, as manifests write it, against all rules that are not about changes.

    Args:
        rules: rules for the type of the value.
        value: JSON value, with all defaults and without fields that are unset.
        title: name of the type.

    Raises:
        ValidationError: with each broken rule; pydantic merges it into the error of the model around the value.
    """
    checked = _about_one_value(rules)
    try:
        found = _mistakes(checked, value)
    except _RuleError:
        try:
            found = _mistakes(checked, _as_stored(value))
        except _RuleError as error:
            found = [("", f"it cannot be checked: {error}")]
    if not found:
        return
    errors = [
        InitErrorDetails(
            type=PydanticCustomError(BROKEN_RULE, "{message}", {"message": message}),
            loc=tuple(field.split(".")) if field else (),
            input=value,
        )
        for field, message in found
    ]
    raise ValidationError.from_exception_data(title, errors)


def in_schema(rules: Iterable[Rule]) -> dict[str, Any]:
    """Return the JSON schema extension with the rules that the API server evaluates; empty if it evaluates none."""
    entries = [
        {"rule": rule.cel, "message": rule.message} | ({"fieldPath": f".{rule.field}"} if rule.field else {})
        for rule in rules
        if rule.in_schema
    ]
    return {CEL_RULES: entries} if entries else {}


@cache
def _about_one_value(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return tuple(rule for rule in rules if not _OLD.search(rule.cel))


@cache
def _all_of(rules: tuple[Rule, ...]) -> str:
    """Return one expression for all rules: it takes a fifth of the time that they take one by one."""
    return " && ".join(f"({rule.cel})" for rule in rules) or "true"


class _RuleError(Exception):
    """Raised when a rule can be neither kept nor broken by a value."""


def _mistakes(rules: tuple[Rule, ...], value: Any) -> list[tuple[str, str]]:
    """Return field and message of each broken rule; raises _RuleError if a rule fails and none is broken."""
    known = {"self": value}
    with contextlib.suppress(_RuleError):  # Others may be broken.
        if _holds(_all_of(rules), known):
            return []
    broken, failed = list[tuple[str, str]](), None
    for rule in rules:
        try:
            if not _holds(rule.cel, known):
                broken.append((rule.field, rule.message))
        except _RuleError as error:
            failed = error
    if failed is not None and not broken:
        raise failed
    return broken


def _holds(expression: str, known: Mapping[str, Any]) -> bool:
    try:
        found = _program(expression).eval(_environment().Activation(known))
    except RuntimeError as error:  # A text that is no Unicode.
        raise _RuleError(str(error)) from error
    if found.type() == cel.Type.ERROR:
        raise _RuleError(str(found.value()))
    return found.value() is True


def _as_stored(value: Any) -> Any:
    """Return a value as an API server would store it: large integers as floating-point numbers, texts in UTF-8."""
    match value:
        case dict():
            return {_as_stored(key): _as_stored(one) for key, one in value.items()}
        case list():
            return [_as_stored(one) for one in value]
        case int() if not -_INTEGERS <= value < _INTEGERS:
            return math.inf if abs(value) > sys.float_info.max else float(value)
        case str():
            return value.encode(errors="replace").decode()
    return value


@cache
def _program(expression: str) -> cel.Expression:
    return _environment().compile(expression)


@cache
def _environment() -> cel.Env:
    """Return CEL with what Kubernetes adds to it, as far as rules use it: optional values, and sums."""
    sum_of_list = cel.Overload("sum_of_list", cel.Type.INT, [cel.Type.List(cel.Type.DYN)], is_member=True, impl=sum)
    functions = [cel.FunctionDecl("sum", [sum_of_list])]
    extensions = [ext_optional.ExtOptional()]
    return cel.NewEnv(variables={"self": cel.Type.DYN}, functions=functions, extensions=extensions)


CHANGES_WHILE_SUSPENDED: Final = "may change only while the job is suspended"
"""Part of the refusal of a change to a running job."""
IS_IMMUTABLE: Final = "the field is immutable"
"""Part of the refusal of a change that no job allows."""
IMMUTABLE: Final = in_schema(
    [Rule("", "self == oldSelf", f"{IS_IMMUTABLE}: create a new RLJob instead of changing it")]
)
