"""Validation rules in CEL."""

from typing import Any

import pytest

from longshore_devcluster.apiserver.crd.cel import RuleSet, rule_errors
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


def _complaints(rule: str) -> list[str]:
    schema = structural({"type": "object", "properties": PROPERTIES, "x-kubernetes-validations": [{"rule": rule}]})
    return [error.message for error in rule_errors(schema, "root")]


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
        ("self.s.find('[0-9]+') == '12' && self.s.findAll('[0-9]') == ['1', '2', '3']", {"s": "a12b3"}),
        ("self.__namespace__ == 'x'", {"namespace": "x"}),
        ("self.map.all(k, self.map[k] > 0)", {"map": {"a-b": 1}}),
        ("has(self.free) && !has(self.s)", {"free": {"x": 1}}),
        ("self.tags.isSorted() && self.tags.max() == 'b'", {"tags": ["a", "b"]}),
        ("self.s.lowerAscii().replace('x', 'y').substring(0, 2) == 'ay'", {"s": "AXC"}),
    ],
)  # fmt: skip
def test_rules_that_hold(rule: str, value: dict[str, Any]) -> None:
    assert _complaints(rule) == []
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


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("self.nope > 1", "5: undefined field 'nope'\n | self.nope > 1\n | ....^"),
        ("self.n.deep == 1", "7: type 'int' does not support field selection\n"),
        ("self.n > 'a'", "8: found no matching overload for '_>_' applied to '(int, string)'\n"),
        ("self.free.x == 1", "10: undefined field 'x'\n"),
        ("other.n == 1", "6: undeclared reference to 'other.n' (in container '')\n"),
        ("invent(self.n)", "7: undeclared reference to 'invent' (in container '')\n"),
        ("self.ports.all(p, p.nope == 1)", "20: undefined field 'nope'\n"),
        ("self.n >", "9: Syntax error: mismatched input '<EOF>'"),
    ],
)
def test_rules_that_cannot_be_are_refused(rule: str, why: str) -> None:
    (complaint,) = _complaints(rule)
    assert f": compilation failed: ERROR: <input>:1:{why}" in complaint


def test_errors_name_the_place_of_the_rule() -> None:
    bad = {"type": "object", "x-kubernetes-validations": [{"rule": "self.x"}]}
    schema = structural({"type": "object", "properties": {"spec": bad}})
    (error,) = rule_errors(schema, "root")
    assert error.field == "root.properties[spec].x-kubernetes-validations[0].rule"
