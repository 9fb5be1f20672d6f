"""What a rule reads of its value, and that it judges by nothing else."""

from typing import Any

import pytest

from longshore_devcluster.apiserver.crd.cel import RuleSet, parse
from longshore_devcluster.apiserver.crd.cel_reads import Path, only, reads
from longshore_devcluster.apiserver.crd.structural import structural

WHOLE: Path = ()


@pytest.mark.parametrize(
    ("rule", "paths"),
    [
        ("size(self.metadata.name) <= 45", {("metadata", "name")}),
        ("!has(self.a.b) || self.c", {("a", "b"), ("c",)}),
        ("self.a.b.matches('^self.c$')", {("a", "b")}),
        ("self.map['x'].n == 1", {("map",)}),
        ("self.ports.all(p, p.port == self.n)", {("ports",), ("n",)}),
        ("self['x'].n == 1", {WHOLE}),
        ("size(self) == 1", {WHOLE}),
        ("self == oldSelf", {WHOLE}),
        ("self.a == oldSelf.b", {("a",)}),
        ("self.a.filter(self, self.n == 1).size() == 1", {("a",), WHOLE, ("n",)}),
        (".self.a == 1", {WHOLE}),
        ("true", set()),
    ],
)
def test_what_a_rule_reads(rule: str, paths: set[Path]) -> None:
    assert reads(parse(rule), "self") == paths


def test_only_that_is_left_of_a_value_under_the_names_that_rules_give_it() -> None:
    fields = {name: {"type": "string"} for name in ("a", "b", "namespace", "x-y")}
    words = {"type": "object", "additionalProperties": {"type": "string"}}
    schema = structural({"type": "object", "properties": {**fields, "words": words, "list": {"type": "array"}}})
    value = {"a": "1", "b": "2", "namespace": "3", "x-y": "4", "words": {"x-y": "5", "z": "6"}, "list": [{"a": 7}]}
    assert only(value, schema, {("a",), ("missing", "n"), ("list", "a")}) == {"a": "1", "list": [{"a": 7}]}
    assert only(value, schema, {("__namespace__",), ("x__dash__y",)}) == {"namespace": "3", "x-y": "4"}
    assert only(value, schema, {("words", "z")}) == {"words": {"z": "6"}}
    assert only(value, schema, {("words",), ("words", "z")}) == {"words": value["words"]}
    assert only(value, schema, {WHOLE, ("a",)}) == value
    assert only(value, schema, set()) == {}


def test_a_rule_of_the_whole_object_is_judged_once_for_all_changes_of_what_it_does_not_read() -> None:
    rule = {"rule": "self.n < 3 && self.n >= oldSelf.n", "messageExpression": "'too many in ' + self.s"}
    properties: dict[str, Any] = {"n": {"type": "integer"}, "s": {"type": "string"}, "status": {"type": "string"}}
    schema = structural({"type": "object", "properties": properties, "x-kubernetes-validations": [rule]})
    rules = RuleSet(schema)
    for status in ("a", "b", "c"):
        assert rules.errors({"n": 2, "s": "x", "status": status}, {"n": 1, "s": "x"}) == []
    assert len(rules.kept) == 1
    assert rules.errors({"n": 2, "s": "x"}, {"n": 2, "s": "x", "status": "d"}) == []
    assert len(rules.kept) == 2, "what it reads of the old value counts"
    (error,) = rules.errors({"n": 3, "s": "x"}, {"n": 1, "s": "x"})
    assert error.message == "Invalid value: too many in x", "the message reads more than the rule"
