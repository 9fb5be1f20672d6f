"""Validation rules (``x-kubernetes-validations``): compiled once, run for every write."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import celpy
from celpy.celparser import CELParseError
from celpy.evaluation import CELEvalError

from longshore_devcluster.apiserver.crd.cel_check import BadRule, Scope, check, from_parse_error
from longshore_devcluster.apiserver.crd.cel_library import FUNCTIONS, MaybeValue, to_cel
from longshore_devcluster.apiserver.errors import FieldError, compact, field_invalid_text
from longshore_devcluster.apiserver.fieldsets import item_element
from longshore_devcluster.apiserver.schema.node import Json, Object, Rule, Schema

_OLD = re.compile(r"\boldSelf\b")
_MISSING: Any = object()
_LEADS = {
    "FieldValueForbidden": "Forbidden",
    "FieldValueRequired": "Required value",
    "FieldValueDuplicate": "Duplicate value",
    "FieldValueInvalid": "Invalid value",
}
_ERRORS = (CELEvalError, ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError)


@cache
def _environment() -> celpy.Environment:
    return celpy.Environment()


@cache
def _program(expression: str) -> celpy.Runner:
    environment = _environment()
    return environment.program(environment.compile(expression), functions=FUNCTIONS)


def compile_rule(expression: str, schema: Schema) -> None:
    """Raises BadRule for an expression that does not compile against its schema."""
    try:
        tree = _environment().compile(expression)
    except CELParseError as error:
        raise from_parse_error(expression, error) from error
    scope: Scope = {"self": schema, "oldSelf": schema}
    check(expression, tree, scope)


def rule_errors(schema: Schema, path: str) -> Iterator[FieldError]:
    """Errors of the rules in a schema that is being defined."""
    for index, rule in enumerate(schema.rules):
        where = f"{path}.x-kubernetes-validations[{index}]"
        try:
            compile_rule(rule.rule, schema)
        except BadRule as error:
            yield field_invalid_text(f"{where}.rule", _shown(rule), str(error))
        if rule.message_expression:
            try:
                compile_rule(rule.message_expression, schema)
            except BadRule as error:
                yield field_invalid_text(f"{where}.messageExpression", _shown(rule), f"messageExpression {error}")
    for name, child in schema.properties.items():
        if child.source is not None:
            yield from rule_errors(child, f"{path}.properties[{name}]")
    if schema.item is not None:
        yield from rule_errors(schema.item, f"{path}.{'items' if schema.kind == 'list' else 'additionalProperties'}")


def _shown(rule: Rule) -> str:
    reason = None if rule.reason == "FieldValueInvalid" else rule.reason
    source = {
        "Rule": rule.rule, "Message": rule.message, "MessageExpression": rule.message_expression, "Reason": reason,
        "FieldPath": rule.field_path, "OptionalOldSelf": rule.optional_old_self,
    }  # fmt: skip
    return "{" + ",".join(f"{compact(name)}:{compact(value)}" for name, value in source.items()) + "}"


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules of a schema and everything below it."""

    schema: Schema

    def errors(self, new: Object, old: Object | None) -> list[FieldError]:
        """Errors of an object; rules about ``oldSelf`` hold where there is an old value."""
        return list(_walk(new, _MISSING if old is None else old, self.schema, ""))


def _walk(new: Json, old: Json, schema: Schema, path: str) -> Iterator[FieldError]:
    if new is None:
        return
    if schema.rules:
        yield from _check_rules(new, old, schema, path)
    if isinstance(new, dict):
        for name, member in new.items():
            child = schema.child(name)
            if child is not None and child.source is not None:
                before = old.get(name, _MISSING) if isinstance(old, dict) else _MISSING
                shown = f"{path}.{name}" if path else name
                yield from _walk(member, before, child, shown if name in schema.properties else f"{path}[{name}]")
    elif isinstance(new, list) and schema.item is not None:
        olds = _items_by_key(old, schema)
        for index, item in enumerate(new):
            key = item_element(item, schema) if schema.list_type == "map" else None
            yield from _walk(item, olds.get(key, _MISSING) if key else _MISSING, schema.item, f"{path}[{index}]")


def _items_by_key(old: Json, schema: Schema) -> dict[str | None, Json]:
    """Old items by their keys; only lists of type map can tell which item is which."""
    if schema.list_type != "map" or not isinstance(old, list):
        return {}
    return {item_element(item, schema): item for item in old}


def _check_rules(new: Json, old: Json, schema: Schema, path: str) -> Iterator[FieldError]:
    # A value that stays as it was is not judged again (CRD validation ratcheting); a transition always is.
    unchanged = new == old
    rules = [rule for rule in schema.rules if not unchanged or _OLD.search(rule.rule)]
    if not rules:
        return
    current = to_cel(new, schema)
    previous = current if unchanged else None if old is _MISSING else to_cel(old, schema)
    for rule in rules:
        variables = {"self": current}
        if _OLD.search(rule.rule):
            if rule.optional_old_self:
                variables["oldSelf"] = MaybeValue(() if old is _MISSING else (previous,))
            elif old is _MISSING:
                continue
            else:
                variables["oldSelf"] = previous
        try:
            passed = bool(_program(rule.rule).evaluate(variables))
        except _ERRORS as error:
            why = f"{_reason_of(error)} evaluating rule: {rule.rule}"
            yield field_invalid_text(path or "<nil>", _value_shown(new), why)
            continue
        if not passed:
            yield _failure(rule, new, variables, path)


def _reason_of(error: Exception) -> str:
    return str(error.args[0]) if error.args else type(error).__name__


def _failure(rule: Rule, value: Json, variables: dict[str, Any], path: str) -> FieldError:
    message = rule.message or f"failed rule: {rule.rule}"
    if rule.message_expression:
        try:
            computed = str(_program(rule.message_expression).evaluate(variables)).strip()
            message = computed if computed and "\n" not in computed else message
        except _ERRORS:
            pass  # Kubernetes, too, falls back to the fixed message
    where = f"{path}{rule.field_path}".lstrip(".") if rule.field_path else path
    lead = _LEADS.get(rule.reason, "Invalid value")
    shown = _value_shown(value)
    with_value = rule.reason in ("FieldValueInvalid", "FieldValueDuplicate") and shown and not rule.field_path
    text = f"{lead}: {shown}: {message}" if with_value else f"{lead}: {message}"
    return FieldError(rule.reason, where or "<nil>", text)


def _value_shown(value: Json) -> str:
    """Scalars are shown in messages, containers are not."""
    return "" if isinstance(value, (dict, list)) else compact(value)
