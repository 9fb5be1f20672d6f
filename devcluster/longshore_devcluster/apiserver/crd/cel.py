"""Validation rules (``x-kubernetes-validations``): compiled once, run for every write."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

from longshore_devcluster.apiserver.crd.cel_library import FUNCTIONS, to_cel
from longshore_devcluster.apiserver.crd.cel_types import type_of
from longshore_devcluster.apiserver.crd.openapi_checks import type_name
from longshore_devcluster.apiserver.errors import (
    FieldError,
    compact,
    field_invalid,
    field_invalid_text,
    field_not_supported,
    field_required,
)
from longshore_devcluster.apiserver.fieldsets import item_element
from longshore_devcluster.apiserver.schema.node import Json, Object, Rule, Schema

_OLD = re.compile(r"\boldSelf\b")
_FIELD_PATH = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\['([^']+)'\]")
_MISSING: Any = object()
_REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
_LEADS = {
    "FieldValueForbidden": "Forbidden",
    "FieldValueRequired": "Required value",
    "FieldValueDuplicate": "Duplicate value",
    "FieldValueInvalid": "Invalid value",
}
_STATUS = re.compile(r"^[A-Z_]+: | \[[A-Z_]+\]$")
"""What the library puts around its texts."""
_WORDS = (
    (re.compile(r" not found in struct '\w+'"), ""),
    (
        re.compile(r"expression of type ('\w+') cannot be the operand of a select operation"),
        r"type \1 does not support field selection",
    ),
    (re.compile(r'Key not found in map : "(.*)"'), r"no such key: \1"),
    (re.compile(r"divide by zero"), "division by zero"),
)
"""Where the library's words are not those of the real server."""


class EvaluationError(Exception):
    """The expression has no value; the text says why."""


def environment(variables: dict[str, cel.Type], pool: Any = None) -> cel.Env:
    """Return CEL with the functions of Kubernetes."""
    extensions = [ext_optional.ExtOptional(), ext_strings.ExtStrings()]
    return cel.NewEnv(pool, variables=variables, functions=FUNCTIONS, extensions=extensions)


_ENVIRONMENT = environment(dict.fromkeys(("self", "oldSelf"), cel.Type.DYN))


def complaint(checker: cel.Env, expression: str) -> str:
    """Return why an expression cannot be compiled, in the real server's form; empty if it can."""
    try:
        checker.compile(expression)
    except RuntimeError as error:
        return f"compilation failed: {_in_words(error)}"
    return ""


def evaluate(program: cel.Expression, variables: Object) -> Any:
    """Return the value of an expression; raises EvaluationError."""
    found = program.eval(data=variables)
    if found.type() == cel.Type.ERROR:
        raise EvaluationError(_in_words(found.value()))
    return found.plain_value()


def _in_words(error: Any) -> str:
    text = _STATUS.sub("", str(error))
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return text


@cache
def _program(expression: str) -> cel.Expression:
    return _ENVIRONMENT.compile(expression)


@lru_cache(maxsize=8)
def _checker(schema: Schema, *, optional: bool) -> cel.Env:
    """Return an environment in which the types of a schema's values are known."""
    pool, kind = type_of(schema)
    return environment({"self": kind, "oldSelf": cel.Type.DYN if optional else kind}, pool)


def rule_errors(schema: Schema, path: str, uncorrelatable: str = "") -> Iterator[FieldError]:
    """Yield the errors of the rules in a schema that is being defined.

    `uncorrelatable`: path of the list around it whose items cannot be distinguished, so that none has an old value.
    """
    for index, rule in enumerate(schema.rules):
        yield from _one_rule_errors(rule, schema, f"{path}.x-kubernetes-validations[{index}]", uncorrelatable)
    for name, child in schema.properties.items():
        if child.source is not None:
            yield from rule_errors(child, f"{path}.properties[{name}]", uncorrelatable)
    if schema.item is not None and schema.kind == "list":
        blind = uncorrelatable or ("" if schema.list_type == "map" else path)
        yield from rule_errors(schema.item, f"{path}.items", blind)
    elif schema.item is not None:
        yield from rule_errors(schema.item, f"{path}.additionalProperties", uncorrelatable)


def _one_rule_errors(rule: Rule, schema: Schema, where: str, uncorrelatable: str) -> Iterator[FieldError]:
    if not rule.rule.strip():
        yield field_required(f"{where}.rule", "rule is not specified")
        return
    if "\n" in rule.rule.strip() and not rule.message:
        yield field_required(f"{where}.message", "message must be specified if rule contains line breaks")
    if "\n" in rule.message.strip():
        yield field_invalid(f"{where}.message", rule.message, "must not contain line breaks")
    if rule.reason not in _REASONS:
        yield field_not_supported(f"{where}.reason", rule.reason, _REASONS)
    if rule.field_path and not _leads_somewhere(rule.field_path, schema):
        yield field_invalid(f"{where}.fieldPath", rule.field_path, "must be a valid path")
    checker = _checker(schema, optional=bool(rule.optional_old_self))
    if why := complaint(checker, rule.rule):
        yield field_invalid_text(f"{where}.rule", _shown(rule), why)
    if uncorrelatable and _OLD.search(rule.rule):
        why = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {uncorrelatable}"
        yield field_invalid(f"{where}.rule", rule.rule, why)
    if rule.message_expression and (why := complaint(checker, rule.message_expression)):
        yield field_invalid_text(f"{where}.messageExpression", _shown(rule), f"messageExpression {why}")


def _leads_somewhere(field_path: str, schema: Schema) -> bool:
    """Return whether a path such as `.a.b` or `['c']` names a field of the schema."""
    names = [name or quoted for name, quoted in _FIELD_PATH.findall(field_path)]
    if "".join(match[0] for match in _FIELD_PATH.finditer(field_path)) != field_path:
        return False
    node: Schema | None = schema
    for name in names:
        node = node.child(name) if node is not None and node.kind != "list" else None
    return node is not None


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
        """Return the errors of an object; rules about ``oldSelf`` hold where there is an old value."""
        return list(_walk(new, _MISSING if old is None else old, self.schema, ""))

    def errors_of_default(self, value: Json) -> list[FieldError]:
        """Return errors of a default: every rule counts, and those about ``oldSelf`` compare the value with itself."""
        return list(_walk(value, value, self.schema, "", ratcheting=False))


def _walk(new: Json, old: Json, schema: Schema, path: str, *, ratcheting: bool = True) -> Iterator[FieldError]:
    if new is None:
        return
    if schema.rules:
        yield from _check_rules(new, old, schema, path, ratcheting=ratcheting)
    if isinstance(new, dict):
        for name, member in new.items():
            child = schema.child(name)
            if child is not None and child.source is not None:
                before = old.get(name, _MISSING) if isinstance(old, dict) else _MISSING
                shown = f"{path}.{name}" if path else name
                where = shown if name in schema.properties else f"{path}[{name}]"
                yield from _walk(member, before, child, where, ratcheting=ratcheting)
    elif isinstance(new, list) and schema.item is not None:
        olds = _items_by_key(old, schema)
        for index, item in enumerate(new):
            key = item_element(item, schema) if schema.list_type == "map" else None
            before = olds.get(key, _MISSING) if key else _MISSING
            yield from _walk(item, before, schema.item, f"{path}[{index}]", ratcheting=ratcheting)


def _items_by_key(old: Json, schema: Schema) -> dict[str | None, Json]:
    """Return old items by their keys; only in lists of type map do items have keys."""
    if schema.list_type != "map" or not isinstance(old, list):
        return {}
    return {item_element(item, schema): item for item in old}


def _check_rules(new: Json, old: Json, schema: Schema, path: str, *, ratcheting: bool) -> Iterator[FieldError]:
    # A value that stays as it was is not judged again (CRD validation ratcheting); a transition always is.
    unchanged = new == old
    due = [rule for rule in schema.rules if not (unchanged and ratcheting) or _OLD.search(rule.rule)]
    if not due:
        return
    variables = {"self": to_cel(new, schema)}
    if old is not _MISSING:
        variables["oldSelf"] = variables["self"] if unchanged else to_cel(old, schema)
    due = [rule for rule in due if old is not _MISSING or rule.optional_old_self or not _OLD.search(rule.rule)]
    if _all_hold(due, variables):
        return
    for rule in due:
        try:
            passed = evaluate(_program(_with_optional(rule, rule.rule, variables)), variables)
        except EvaluationError as error:
            why = f"{error} evaluating rule: {rule.message or rule.rule}"
            yield field_invalid_text(path or "<nil>", _value_shown(new) or compact(type_name(new)), why)
            continue
        if not passed:
            yield _failure(rule, new, variables, path)


def _all_hold(rules: list[Rule], variables: Object) -> bool:
    """Return whether rules hold, by one expression for all: the library reads each value once for it."""
    whole = " && ".join(f"({_with_optional(rule, rule.rule, variables)})" for rule in rules)
    try:
        return bool(evaluate(_program(whole or "true"), variables))
    except EvaluationError:
        return False


def _with_optional(rule: Rule, expression: str, variables: Object) -> str:
    """Return an expression with oldSelf as an optional value, which the library takes from expressions alone."""
    if not rule.optional_old_self:
        return expression
    old = "optional.of(oldSelf)" if "oldSelf" in variables else "optional.none()"
    return f"[{old}].map(oldSelf, {expression})[0]"


def _failure(rule: Rule, value: Json, variables: Object, path: str) -> FieldError:
    message = rule.message or f"failed rule: {rule.rule}"
    if rule.message_expression:
        try:
            computed = str(
                evaluate(_program(_with_optional(rule, rule.message_expression, variables)), variables)
            ).strip()
            message = computed if computed and "\n" not in computed else message
        except EvaluationError:
            pass  # Kubernetes, too, falls back to the fixed message
    where = f"{path}{rule.field_path}".lstrip(".") if rule.field_path else path
    lead = _LEADS.get(rule.reason, "Invalid value")
    shown = _value_shown(value)
    with_value = rule.reason in ("FieldValueInvalid", "FieldValueDuplicate") and shown and not rule.field_path
    text = f"{lead}: {shown}: {message}" if with_value else f"{lead}: {message}"
    return FieldError(rule.reason, where or "<nil>", text)


def _value_shown(value: Json) -> str:
    """Return a scalar as messages show it; containers are not shown."""
    return "" if isinstance(value, (dict, list)) else compact(value)
