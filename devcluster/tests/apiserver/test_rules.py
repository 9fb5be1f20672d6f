"""Validation rules in CEL."""

from typing import Any

import celpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_devcluster.apiserver.crd.cel import RuleSet, compile_rule, evaluate, rule_errors
from longshore_devcluster.apiserver.crd.cel_check import BadRule
from longshore_devcluster.apiserver.crd.cel_library import FUNCTIONS
from longshore_devcluster.apiserver.crd.structural import structural
from longshore_devcluster.apiserver.errors import FieldError

PROPERTIES: dict[str, Any] = {
    "n": {"type": "integer"},
    "s": {"type": "string"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "ports": {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "properties": {"name": {"type": "string"}, "port": {"type": "integer"}}},
    },
    "namespace": {"type": "string"},
    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    "map": {"type": "object", "additionalProperties": {"type": "integer"}},
}


PORT = {"name": "a", "port": 8}


def _errors(value: dict[str, Any], old: dict[str, Any] | None = None, **rule: Any) -> list[FieldError]:
    schema = structural({"type": "object", "properties": PROPERTIES, "x-kubernetes-validations": [rule]})
    return RuleSet(schema).errors(value, old)


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("self.n > 1 && self.n in [2, 3]", {"n": 2}),
        ("!has(self.s) || self.s.startsWith('a')", {}),
        ("size(self.tags) == 2 && self.tags.all(t, t.matches('^[a-z]+$'))", {"tags": ["a", "b"]}),
        ("self.ports.exists(p, p.port == 8) && self.ports.exists_one(p, p.name == 'a')", {"ports": [PORT]}),
        ("self.s.split(',').map(p, p.trim()).join('-') == 'a-b'", {"s": "a, b"}),
        ("quantity(self.s).isLessThan(quantity('1Gi')) && isQuantity(self.s)", {"s": "512Mi"}),
        ("quantity('1.5').compareTo(quantity('1500m')) == 0", {}),
        ("isURL(self.s) && url(self.s).getHost() == 'example.com:80'", {"s": "http://example.com:80/x"}),
        ("self.__namespace__ == 'x'", {"namespace": "x"}),
        ("self.map.all(k, self.map[k] > 0)", {"map": {"a-b": 1}}),
        ("has(self.free) && !has(self.s)", {"free": {"x": 1}}),
        ("self.tags.isSorted() && self.tags.indexOf('b') == 1", {"tags": ["a", "b"]}),
        ("self.s.lowerAscii().replace('x', 'y').substring(0, 2) == 'ay'", {"s": "AXC"}),
    ],
)  # fmt: skip
def test_rules_that_hold(rule: str, value: dict[str, Any]) -> None:
    compile_rule(rule, structural({"type": "object", "properties": PROPERTIES}))
    assert _errors(value, rule=rule) == []


def test_a_broken_rule_speaks_with_its_message() -> None:
    (error,) = _errors({"n": 1}, rule="self.n > 1", message="too few")
    assert (error.field, error.message, error.reason) == ("<nil>", "Invalid value: too few", "FieldValueInvalid")
    (error,) = _errors({"n": 1}, rule="self.n > 1")
    assert error.message == "Invalid value: failed rule: self.n > 1"


def test_a_message_can_be_computed() -> None:
    (error,) = _errors({"n": 1}, rule="false", messageExpression="'n is ' + string(self.n)", message="fallback")
    assert error.message == "Invalid value: n is 1"
    (error,) = _errors({}, rule="false", messageExpression="'n is ' + string(self.n)", message="fallback")
    assert error.message == "Invalid value: fallback"


def test_field_and_reason_can_be_chosen() -> None:
    (error,) = _errors({"n": 1}, rule="false", message="no", reason="FieldValueForbidden", fieldPath=".n")
    assert (error.field, error.reason, error.message) == ("n", "FieldValueForbidden", "Forbidden: no")


def test_a_missing_field_is_an_error_of_the_rule() -> None:
    (error,) = _errors({}, rule="self.n > 1")
    assert "evaluating rule: self.n > 1" in error.message


def test_transition_rules_wait_for_an_old_value() -> None:
    assert _errors({"n": 1}, rule="self.n >= oldSelf.n") == []
    assert _errors({"n": 1}, {"n": 2}, rule="self.n >= oldSelf.n") != []


def test_what_stays_as_it_was_is_not_judged_again() -> None:
    assert _errors({"n": 1, "s": "a"}, {"n": 1, "s": "a"}, rule="self.n > 1") == []
    assert _errors({"n": 1, "s": "b"}, {"n": 1, "s": "a"}, rule="self.n > 1") != []


def test_an_optional_old_value_holds_on_creation_too() -> None:
    rule: dict[str, Any] = {"rule": "oldSelf.hasValue() || self.n == 0", "optionalOldSelf": True}
    assert _errors({"n": 1}, **rule) != []
    assert _errors({"n": 1}, {"n": 5}, **rule) == []


def test_items_of_a_list_map_remember_their_old_selves() -> None:
    item = {**PROPERTIES["ports"]["items"], "x-kubernetes-validations": [{"rule": "self.port == oldSelf.port"}]}
    schema = structural({"type": "object", "properties": {"ports": {**PROPERTIES["ports"], "items": item}}})
    old = {"ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2}]}
    new = {"ports": [{"name": "b", "port": 2}, {"name": "a", "port": 3}, {"name": "c", "port": 4}]}
    assert [error.field for error in RuleSet(schema).errors(new, old)] == ["ports[1]"]


_LEAVES = ("1", "-2", "0", "true", "!false", "'a'", "n", "[1, n]", "m.a", "m['b']", "has(m.a)", "has(m.b)", "absent")
_FORMS = (
    "{} + {}", "{} * {}", "{} / {}", "{} < {}", "{} == {}", "{} in {}", "{} && {}", "{} || {}", "!({})", "({})",
    "{} ? {} : {}", "[{}].all(n, {})", "[{}, 3].exists(e, e == {})", "[{}].map(e, {})[0]",
    "size([{}]) == {}", "m.all(k, k == 'a' || {})",
)  # fmt: skip


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(st.sampled_from(_FORMS), inner, inner, inner).map(lambda one: one[0].format(*one[1:]))


@given(st.recursive(st.sampled_from(_LEAVES), _larger, max_leaves=8))
def test_an_expression_has_the_value_that_celpy_gives_to_all_of_its_tree(expression: str) -> None:
    """The levels that only lead to the next one are left out."""
    known: dict[str, Any] = {"n": celpy.json_to_cel(2), "m": celpy.json_to_cel({"a": 1})}
    environment = celpy.Environment()
    whole = environment.program(environment.compile(expression), functions=FUNCTIONS)
    try:
        expected: Any = whole.evaluate(dict(known))
    except (celpy.CELEvalError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        expected = str(error.args[0])
    actual = evaluate(expression, dict(known))
    assert (str(actual.args[0]) if isinstance(actual, celpy.CELEvalError) else actual) == expected


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("self.nope > 1", "<input>:1:5: undefined field 'nope'\n | self.nope > 1\n | ....^"),
        ("self.n.deep == 1", "undefined field 'deep'"),
        ("self.free.x == 1", "undefined field 'x'"),
        ("other.n == 1", "undeclared reference to 'other'"),
        ("invent(self.n)", "undeclared reference to 'invent'"),
        ("self.ports.all(p, p.nope == 1)", "undefined field 'nope'"),
        ("self.n >", "Syntax error"),
    ],
)
def test_rules_that_cannot_be_are_refused(rule: str, why: str) -> None:
    with pytest.raises(BadRule) as error:
        compile_rule(rule, structural({"type": "object", "properties": PROPERTIES}))
    assert str(error.value).startswith("compilation failed: ERROR:") and why in str(error.value)


def test_errors_name_the_place_of_the_rule() -> None:
    bad = {"type": "object", "x-kubernetes-validations": [{"rule": "self.x"}]}
    schema = structural({"type": "object", "properties": {"spec": bad}})
    (error,) = rule_errors(schema, "root")
    assert error.field == "root.properties[spec].x-kubernetes-validations[0].rule"


def test_a_rule_that_has_passed_is_judged_again_for_other_values() -> None:
    rule = {"rule": "self.n > oldSelf.n"}
    grows = RuleSet(structural({"type": "object", "properties": PROPERTIES, "x-kubernetes-validations": [rule]}))
    assert grows.errors({"n": 2}, {"n": 1}) == grows.errors({"n": 2}, {"n": 1}) == grows.errors({"n": 2}, None) == []
    assert len(grows.errors({"n": 2}, {"n": 2})) == len(grows.errors({"n": 2}, {"n": 3})) == 1
    assert len(grows.errors({"n": 2}, {"n": 2})) == 1, "one that has failed, too"
