"""Validation rules (``x-kubernetes-validations``): compiled once, run for every write."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from typing import Any

import celpy
import orjson
from celpy.celparser import CELParseError
from celpy.evaluation import CELEvalError
from lark import Token, Tree

from longshore_devcluster.apiserver.crd.cel_check import BadRule, Scope, check, from_parse_error
from longshore_devcluster.apiserver.crd.cel_library import FUNCTIONS, MaybeValue, to_cel
from longshore_devcluster.apiserver.crd.cel_reads import Path, only, reads
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
_NO_MEMBER = re.compile(r"no such member in mapping: '(.*)'")
_FIELD_PATH = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\['([^']+)'\]")
_MISSING: Any = object()
_MAX_KEPT = 1 << 17
_REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
_LEADS = {
    "FieldValueForbidden": "Forbidden",
    "FieldValueRequired": "Required value",
    "FieldValueDuplicate": "Duplicate value",
    "FieldValueInvalid": "Invalid value",
}
_LEVELS = frozenset(
    ["expr", "conditionalor", "conditionaland", "relation", "addition", "multiplication", "unary", "member"]
)
_ERRORS = (CELEvalError, ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError)


@cache
def _environment() -> celpy.Environment:
    return celpy.Environment()


@cache
def _program(expression: str) -> celpy.Runner:
    return _environment().program(_without_links(parse(expression)), functions=FUNCTIONS)


def _without_links(tree: Tree[Token]) -> Tree[Token]:
    """Return a tree that means the same, without the levels of precedence that only lead to the next one.

    celpy visits every level every time: there are eight above each name and each constant.
    """
    while tree.data in _LEVELS and len(tree.children) == 1 and isinstance(only_child := tree.children[0], Tree):
        tree = only_child
    children = [_without_links(child) if isinstance(child, Tree) else child for child in tree.children]
    return Tree(tree.data, children, tree.meta)


def parse(expression: str) -> Tree[Token]:
    """Return the tree of an expression. Raises BadRule for one that is none."""
    try:
        tree: Tree[Token] = _environment().compile(expression)
    except CELParseError as error:
        raise from_parse_error(expression, error) from error
    return tree


def evaluate(expression: str, variables: dict[str, Any]) -> Any:
    """The value of an expression over CEL values; an error is a value, too, which `||` and `&&` may pass over."""
    try:
        return _program(expression).evaluate(variables)
    except CELEvalError as error:
        return error
    except _ERRORS as error:
        return CELEvalError(str(error), type(error), error.args)


@cache
def read_by(expressions: tuple[str, ...], variable: str) -> frozenset[Path]:
    """Return the members of a variable that any of these expressions reads."""
    return frozenset[Path]().union(*(reads(parse(expression), variable) for expression in expressions))


def compile_rule(expression: str, schema: Schema) -> None:
    """Raises BadRule for an expression that does not compile against its schema."""
    tree = parse(expression)
    scope: Scope = {"self": schema, "oldSelf": schema}
    check(expression, tree, scope)


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
    try:
        compile_rule(rule.rule, schema)
    except BadRule as error:
        yield field_invalid_text(f"{where}.rule", _shown(rule), str(error))
    if uncorrelatable and _OLD.search(rule.rule):
        why = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {uncorrelatable}"
        yield field_invalid(f"{where}.rule", rule.rule, why)
    if rule.message_expression:
        try:
            compile_rule(rule.message_expression, schema)
        except BadRule as error:
            yield field_invalid_text(f"{where}.messageExpression", _shown(rule), f"messageExpression {error}")


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


class Kept:
    """Rules that have passed, by the values that they saw: a rule depends on nothing else.

    Most writes change the status: rules about ``oldSelf``, and those of the whole object, see the same as before.
    """

    def __init__(self) -> None:
        self._passed: set[tuple[int, Rule, bytes]] = set()
        """The schema is part of it, as the types of values come from there; it lives for as long as the rules."""

    def __len__(self) -> int:
        return len(self._passed)

    def has_passed(self, schema: Schema, rule: Rule, seen: bytes) -> bool:
        return (id(schema), rule, seen) in self._passed

    def keep(self, schema: Schema, rule: Rule, seen: bytes) -> None:
        if len(self._passed) >= _MAX_KEPT:
            self._passed.clear()
        self._passed.add((id(schema), rule, seen))


def digest(*values: Json) -> bytes:
    """What an expression sees, in a few bytes: an object can have a megabyte."""
    return blake2b(b"\0".join(map(orjson.dumps, values)), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules of a schema and everything below it."""

    schema: Schema
    kept: Kept = field(default_factory=Kept, compare=False, repr=False)

    def errors(self, new: Object, old: Object | None) -> list[FieldError]:
        """Return the errors of an object; rules about ``oldSelf`` hold where there is an old value."""
        return list(_walk(new, _MISSING if old is None else old, self.schema, "", self.kept))

    def errors_of_default(self, value: Json) -> list[FieldError]:
        """Errors of a default: every rule counts, and those about ``oldSelf`` compare the value with itself."""
        return list(_walk(value, value, self.schema, "", self.kept, ratcheting=False))


def _walk(
    new: Json, old: Json, schema: Schema, path: str, kept: Kept, *, ratcheting: bool = True
) -> Iterator[FieldError]:
    if new is None:
        return
    if schema.rules:
        yield from _check_rules(new, old, schema, path, kept, ratcheting=ratcheting)
    if isinstance(new, dict):
        for name, member in new.items():
            child = schema.child(name)
            if child is not None and child.source is not None:
                before = old.get(name, _MISSING) if isinstance(old, dict) else _MISSING
                shown = f"{path}.{name}" if path else name
                where = shown if name in schema.properties else f"{path}[{name}]"
                yield from _walk(member, before, child, where, kept, ratcheting=ratcheting)
    elif isinstance(new, list) and schema.item is not None:
        olds = _items_by_key(old, schema)
        for index, item in enumerate(new):
            key = item_element(item, schema) if schema.list_type == "map" else None
            before = olds.get(key, _MISSING) if key else _MISSING
            yield from _walk(item, before, schema.item, f"{path}[{index}]", kept, ratcheting=ratcheting)


def _items_by_key(old: Json, schema: Schema) -> dict[str | None, Json]:
    """Old items by their keys; only in lists of type map do items have keys."""
    if schema.list_type != "map" or not isinstance(old, list):
        return {}
    return {item_element(item, schema): item for item in old}


def _check_rules(
    new: Json, old: Json, schema: Schema, path: str, kept: Kept, *, ratcheting: bool
) -> Iterator[FieldError]:
    # A value that stays as it was is not judged again (CRD validation ratcheting); a transition always is.
    unchanged = new == old
    due = tuple(rule for rule in schema.rules if not (unchanged and ratcheting) or _OLD.search(rule.rule))
    if not due:
        return
    shown, before = _seen_by(due, new, schema, "self"), _seen_by(due, old, schema, "oldSelf")
    seen = digest(shown) if before is _MISSING else digest(shown, before)
    rules = [rule for rule in due if not kept.has_passed(schema, rule, seen)]
    if not rules:
        return
    current = to_cel(shown, schema)
    previous = None if old is _MISSING else to_cel(before, schema)
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
            why = f"{_reason_of(error)} evaluating rule: {rule.message or rule.rule}"
            yield field_invalid_text(path or "<nil>", _value_shown(new) or compact(type_name(new)), why)
            continue
        if passed:
            kept.keep(schema, rule, seen)
        else:
            yield _failure(rule, new, variables, path)


def _seen_by(rules: tuple[Rule, ...], value: Json, schema: Schema, variable: str) -> Json:
    """Return what these rules and their messages read of a value."""
    expressions = tuple(text for rule in rules for text in (rule.rule, rule.message_expression) if text)
    return value if value is _MISSING else only(value, schema, read_by(expressions, variable))


def _reason_of(error: Exception) -> str:
    """Return why an evaluation failed, in the real server's words where they are known."""
    reason, *more = error.args or (type(error).__name__,)
    if match := _NO_MEMBER.fullmatch(str(reason)):
        return f"no such key: {match[1]}"
    if reason == "no such key" and len(more) == 2 and more[1]:
        return f"no such key: {more[1][0]}"
    if reason == "modulus or divide by zero":
        return "division by zero"
    return str(reason)


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
