"""The functions that Kubernetes adds to CEL, and values as CEL sees them."""

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from celpy import CELEvalError, celtypes

from longshore_devcluster.apiserver.schema.node import Json, Schema
from longshore_kube.quantities import QUANTITY, parse_quantity

Value = Any
_RESERVED = frozenset(
    [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A Kubernetes quantity, exactly."""

    amount: Fraction


@dataclass(frozen=True, slots=True)
class MaybeValue:
    """CEL's optional type."""

    values: tuple[Value, ...]


def escaped(name: str) -> str:
    """Return a property's name inside CEL expressions."""
    if name in _RESERVED:
        return f"__{name}__"
    for part, word in (("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__")):
        name = name.replace(part, word)
    return name


def to_cel(value: Json, schema: Schema | None) -> Value:
    """Return a JSON value as CEL's; the schema says which strings are times and which names are fields."""
    if value is None:
        return None
    if isinstance(value, bool):
        return celtypes.BoolType(value)
    if isinstance(value, int):
        return celtypes.DoubleType(value) if schema and schema.kind == "number" else celtypes.IntType(value)
    if isinstance(value, float):
        whole = schema is not None and schema.kind == "int"
        return celtypes.IntType(int(value)) if whole else celtypes.DoubleType(value)
    if isinstance(value, str):
        return _text(value, schema.format if schema else "")
    if isinstance(value, list):
        return celtypes.ListType([to_cel(item, schema.item if schema else None) for item in value])
    fields = schema is not None and schema.kind == "object"
    return celtypes.MapType(
        {
            celtypes.StringType(escaped(name) if fields else name): to_cel(
                member, schema.child(name) if schema else None
            )
            for name, member in value.items()
        }
    )


def _text(value: str, form: str) -> Value:
    try:
        if form == "date-time":
            return celtypes.TimestampType(value)
        if form == "duration":
            return celtypes.DurationType(value)
    except ValueError:
        pass  # schema validation reports it
    return celtypes.StringType(value)


# --- functions

_B, _I, _S = celtypes.BoolType, celtypes.IntType, celtypes.StringType


def _strings(values: list[str]) -> celtypes.ListType:
    return celtypes.ListType([_S(value) for value in values])


def _split(text: str, separator: str, limit: int = -1) -> celtypes.ListType:
    if limit == 0:
        return celtypes.ListType([])
    parts = list(text) if not separator else text.split(separator, limit - 1 if limit > 0 else -1)
    return _strings(parts)


def _substring(text: str, start: int, end: int | None = None) -> celtypes.StringType:
    stop = len(text) if end is None else end
    if not 0 <= start <= stop <= len(text):
        raise ValueError("index out of range")
    return _S(text[start:stop])


def _replace(text: str, old: str, new: str, count: int = -1) -> celtypes.StringType:
    return _S(text.replace(old, new, count))


def _find(text: str, pattern: str) -> celtypes.StringType:
    match = re.search(pattern, text)
    return _S(match[0] if match else "")


def _find_all(text: str, pattern: str, limit: int = -1) -> celtypes.ListType:
    found = [match[0] for match in re.finditer(pattern, text)]
    return _strings(found if limit < 0 else found[:limit])


def _index_of(items: Value, wanted: Value, start: int = 0) -> celtypes.IntType:
    if isinstance(items, str):
        return _I(items.find(wanted, start))
    return _I(next((i for i, item in enumerate(items) if item == wanted), -1))


def _last_index_of(items: Value, wanted: Value) -> celtypes.IntType:
    if isinstance(items, str):
        return _I(items.rfind(wanted))
    return _I(next((i for i in range(len(items) - 1, -1, -1) if items[i] == wanted), -1))


def _is_sorted(items: Value) -> celtypes.BoolType:
    return _B(all(a <= b for a, b in itertools.pairwise(items)))


def _sum(items: Value) -> Value:
    total = items[0] if items else _I(0)
    for item in items[1:]:
        total = total + item
    return total


def _quantity_of(text: Value) -> Quantity:
    return text if isinstance(text, Quantity) else Quantity(parse_quantity(str(text)))


def _is_quantity(text: Value) -> celtypes.BoolType:
    return _B(bool(QUANTITY.fullmatch(str(text))))


def _compare(one: Quantity, other: Quantity) -> celtypes.IntType:
    return _I((one.amount > other.amount) - (one.amount < other.amount))


def _plus(one: Quantity, other: Value, sign: int) -> Quantity:
    amount = other.amount if isinstance(other, Quantity) else int(other)
    return Quantity(one.amount + sign * amount)


def _as_integer(quantity: Quantity) -> celtypes.IntType:
    if quantity.amount != int(quantity.amount):
        raise ValueError("cannot convert value to integer")
    return _I(int(quantity.amount))


def _url(text: str) -> SplitResult:
    found = urlsplit(text)
    if not found.scheme and not text.startswith("/"):
        raise ValueError(f"URL parse error: {text!r}")
    return found


def _is_url(text: str) -> celtypes.BoolType:
    try:
        _url(text)
    except ValueError:
        return _B(False)
    return _B(True)


def _query_of(url: SplitResult) -> celtypes.MapType:
    return celtypes.MapType({_S(name): _strings(values) for name, values in parse_qs(url.query).items()})


def _or_value(maybe: MaybeValue, fallback: Value) -> Value:
    return maybe.values[0] if maybe.values else fallback


def _value_of(maybe: MaybeValue) -> Value:
    if not maybe.values:
        raise ValueError("optional.none() dereference")
    return maybe.values[0]


def _first_error(operator: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    """`&&` or `||`, which of two errors is the first; celpy writes both out, with all that they read."""

    def operate(left: Value, right: Value) -> Value:
        both = isinstance(left, CELEvalError) and isinstance(right, CELEvalError)
        return left if both else operator(left, right)

    return operate


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "_&&_": _first_error(celtypes.logical_and),
    "_||_": _first_error(celtypes.logical_or),
    "split": _split,
    "join": lambda items, separator="": _S(str(separator).join(items)),
    "lowerAscii": lambda text: _S(text.lower()),
    "upperAscii": lambda text: _S(text.upper()),
    "trim": lambda text: _S(text.strip()),
    "reverse": lambda text: _S(text[::-1]),
    "charAt": lambda text, index: _S(text[index : index + 1]),
    "substring": _substring,
    "replace": _replace,
    "indexOf": _index_of,
    "lastIndexOf": _last_index_of,
    "find": _find,
    "findAll": _find_all,
    "isSorted": _is_sorted,
    "sum": _sum,
    "min": min,
    "max": max,
    "quantity": _quantity_of,
    "isQuantity": _is_quantity,
    "compareTo": _compare,
    "isGreaterThan": lambda one, other: _B(one.amount > other.amount),
    "isLessThan": lambda one, other: _B(one.amount < other.amount),
    "isInteger": lambda quantity: _B(quantity.amount == int(quantity.amount)),
    "asInteger": _as_integer,
    "asApproximateFloat": lambda quantity: celtypes.DoubleType(float(quantity.amount)),
    "sign": lambda quantity: _I((quantity.amount > 0) - (quantity.amount < 0)),
    "add": lambda one, other: _plus(one, other, 1),
    "sub": lambda one, other: _plus(one, other, -1),
    "url": _url,
    "isURL": _is_url,
    "getScheme": lambda url: _S(url.scheme),
    "getHost": lambda url: _S(url.netloc),
    "getHostname": lambda url: _S(url.hostname or ""),
    "getPort": lambda url: _S(str(url.port or "")),
    "getEscapedPath": lambda url: _S(url.path),
    "getQuery": _query_of,
    "hasValue": lambda maybe: _B(bool(maybe.values)),
    "orValue": _or_value,
    "value": _value_of,
}
BUILTIN_FUNCTIONS = frozenset(
    [
        "size",
        "has",
        "all",
        "exists",
        "exists_one",
        "map",
        "filter",
        "matches",
        "startsWith",
        "endsWith",
        "contains",
        "type",
        "int",
        "uint",
        "double",
        "string",
        "bytes",
        "bool",
        "dyn",
        "duration",
        "timestamp",
        "getDate",
        "getDayOfMonth",
        "getDayOfWeek",
        "getDayOfYear",
        "getFullYear",
        "getHours",
        "getMilliseconds",
        "getMinutes",
        "getMonth",
        "getSeconds",
    ]
)
