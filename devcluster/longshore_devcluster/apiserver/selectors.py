"""Label and field selectors: parsing and matching."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from longshore_devcluster.apiserver.errors import bad_request
from longshore_devcluster.apiserver.schema.node import Object
from longshore_devcluster.client.selectors import LabelSelector, Requirement

_TOKEN = re.compile(r"\s*(?:(==|!=|=|!|\(|\)|,|<|>)|([^\s=!(),<>]+))")


def matches_labels(selector: LabelSelector, obj: Object) -> bool:
    labels = obj["metadata"].get("labels") or {}
    return all(requirement.matches(labels) for requirement in selector)


def parse_labels(text: str) -> LabelSelector:
    """Return the string form, ``a=b,c in (d,e),!f``. Raises 400 with the real server's words."""
    tokens = _tokens(text)
    if not tokens:
        return ()
    requirements = []
    while True:
        requirements.append(_requirement(tokens))
        if not tokens:
            return tuple(requirements)
        separator = tokens.pop(0)
        if separator != ",":
            raise bad_request(f"found '{separator}', expected: ',' or 'end of string'")
        if not tokens:
            raise bad_request("found '', expected: identifier after ','")


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise bad_request(f"unable to parse requirement: {text[at:]}")
        found.append(match[1] or match[2])
        at = match.end()
    return found


def _requirement(tokens: list[str]) -> Requirement:
    negated = tokens[0] == "!"
    if negated:
        tokens.pop(0)
    if not tokens or _TOKEN.match(tokens[0])[1]:  # type: ignore[index]
        found = tokens[0] if tokens else ""
        raise bad_request(f"found '{found}', expected: !, identifier, or 'end of string'")
    key = tokens.pop(0)
    if negated:
        return Requirement(key, "DoesNotExist")
    if not tokens or tokens[0] == ",":
        return Requirement(key, "Exists")
    operator = tokens.pop(0)
    if operator in ("=", "==", "!="):
        value = tokens.pop(0) if tokens and tokens[0] != "," else ""
        return Requirement(key, "NotIn" if operator == "!=" else "In", frozenset({value}))
    if operator in (">", "<"):
        if not tokens or not tokens[0].lstrip("-").isdigit():
            raise bad_request("for 'Gt', 'Lt' operators, the value must be an integer")
        return Requirement(key, "Gt" if operator == ">" else "Lt", frozenset({tokens.pop(0)}))
    if operator in ("in", "notin"):
        return Requirement(key, "In" if operator == "in" else "NotIn", _value_set(tokens))
    raise bad_request(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")


def _value_set(tokens: list[str]) -> frozenset[str]:
    if not tokens or tokens.pop(0) != "(":
        raise bad_request("found '', expected: '('")
    values: set[str] = set()
    while tokens and tokens[0] != ")":
        token = tokens.pop(0)
        if token != ",":
            values.add(token)
    if not tokens:
        raise bad_request("found '', expected: ',', or ')'")
    tokens.pop(0)
    return frozenset(values)


@dataclass(frozen=True, slots=True)
class FieldRequirement:
    path: str
    equal: bool
    value: str


FieldSelector = tuple[FieldRequirement, ...]
FieldGetters = Mapping[str, Callable[[Object], str]]


def parse_fields(text: str, known: FieldGetters, *, custom: bool) -> FieldSelector:
    """Parse ``metadata.name=a,status.phase!=Running``. Raises 400 for a field that the resource does not select by."""
    requirements = []
    for term in filter(None, re.split(r"(?<!\\),", text)):
        match = re.match(r"^(.*?)(!=|==|=)(.*)$", term, re.S)
        if match is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        path, operator, value = match.groups()
        if path not in known:
            if custom:
                raise bad_request(f"field label not supported: {path}")
            listed = ", ".join(f'"{name}"' for name in known)
            raise bad_request(f'"{path}" is not a known field selector: only {listed}')
        plain = re.sub(r"\\([\\,=])", r"\1", value)
        requirements.append(FieldRequirement(path, operator != "!=", plain))
    return tuple(requirements)


def matches_fields(selector: FieldSelector, getters: FieldGetters, obj: Object) -> bool:
    return all((getters[r.path](obj) == r.value) == r.equal for r in selector)
