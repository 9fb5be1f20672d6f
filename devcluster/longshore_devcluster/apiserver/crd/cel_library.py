"""The functions that Kubernetes adds to CEL, and values as CEL sees them.

The library knows no types besides CEL's own, so quantities are texts. `indexOf` and `lastIndexOf` of lists are missing,
because the library has methods of these names for texts and takes no others.
"""

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import re2
from cel_expr_python import cel

from longshore_devcluster.apiserver.schema.node import Json, Schema
from longshore_kube.quantities import QUANTITY, parse_quantity

_RESERVED = frozenset(
    [
        "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import",
        "let", "loop", "package", "namespace", "return", "var", "void", "while",
    ]
)  # fmt: skip
_BOOL, _DOUBLE, _DYN, _INT, _STRING = (
    cel.Type.BOOL, cel.Type.DOUBLE, cel.Type.DYN, cel.Type.INT, cel.Type.STRING,
)  # fmt: skip
_LIST, _STRINGS = cel.Type.List(_DYN), cel.Type.List(_STRING)


def escaped(name: str) -> str:
    """Return a property's name inside CEL expressions."""
    if name in _RESERVED:
        return f"__{name}__"
    for part, word in (("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__")):
        name = name.replace(part, word)
    return name


def to_cel(value: Json, schema: Schema | None) -> Json:
    """Return a JSON value as expressions see it; the schema says which numbers and which names of fields are others."""
    if schema is None:
        return value
    if isinstance(value, dict):
        fields = schema.kind == "object"
        return {escaped(name) if fields else name: to_cel(member, schema.child(name)) for name, member in value.items()}
    if isinstance(value, list):
        return [to_cel(item, schema.item) for item in value]
    if schema.kind == "number" and isinstance(value, int):
        return float(value)
    if schema.kind == "int" and isinstance(value, float):
        return int(value)
    return value


def _function(name: str, returns: Any, *overloads: tuple[list[Any], Callable[..., Any]], member: bool = True) -> Any:
    declared = [
        cel.Overload(f"{name}_{number}", returns, parameters, is_member=member, impl=run)
        for number, (parameters, run) in enumerate(overloads)
    ]
    return cel.FunctionDecl(name, declared)


def _find(text: str, pattern: str) -> str:
    match = re2.search(pattern, text)
    return match[0] if match else ""


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    found = [match[0] for match in re2.finditer(pattern, text)]
    return found if limit < 0 else found[:limit]


def _quantity(text: str) -> str:
    return _written(parse_quantity(text))


def _written(amount: Fraction) -> str:
    """Return the one text of a quantity, whatever its units were."""
    return str(int(amount)) if amount == int(amount) else f"{float(amount):f}"


def _compare(one: str, other: str) -> int:
    left, right = parse_quantity(one), parse_quantity(other)
    return (left > right) - (left < right)


_TWO = [_STRING, _STRING]
FUNCTIONS = [
    _function("isSorted", _BOOL, ([_LIST], lambda items: all(a <= b for a, b in itertools.pairwise(items)))),
    _function("sum", _DYN, ([_LIST], sum)),
    _function("min", _DYN, ([_LIST], min)),
    _function("max", _DYN, ([_LIST], max)),
    _function("find", _STRING, (_TWO, _find)),
    _function("findAll", _STRINGS, (_TWO, _find_all), ([*_TWO, _INT], _find_all)),
    _function("quantity", _STRING, ([_STRING], _quantity), member=False),
    _function("isQuantity", _BOOL, ([_STRING], lambda text: bool(QUANTITY.fullmatch(text))), member=False),
    _function("compareTo", _INT, (_TWO, _compare)),
    _function("isGreaterThan", _BOOL, (_TWO, lambda one, other: _compare(one, other) > 0)),
    _function("isLessThan", _BOOL, (_TWO, lambda one, other: _compare(one, other) < 0)),
    _function("sign", _INT, ([_STRING], lambda one: _compare(one, "0"))),
    _function("isInteger", _BOOL, ([_STRING], lambda one: parse_quantity(one).denominator == 1)),
    _function("asApproximateFloat", _DOUBLE, ([_STRING], lambda one: float(parse_quantity(one)))),
    _function("add", _STRING, (_TWO, lambda one, other: _written(parse_quantity(one) + parse_quantity(other)))),
    _function("sub", _STRING, (_TWO, lambda one, other: _written(parse_quantity(one) - parse_quantity(other)))),
]
