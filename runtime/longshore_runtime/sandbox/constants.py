"""Values of constant expressions of a data set, within a budget.

Such expressions are evaluated outside the sandbox. So the cost of every operation is counted before it is done. Values
with equal hashes count too: Python compares each of them with all others that a set or dictionary has.
"""

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

BUDGET: Final = 10_000_000
"""Characters and words of numbers that all constants of a test program may have, on the way as well; the rest counts
as many of them as take as long."""
_ELEMENT: Final = 2
_MAX_BITS: Final = 14_000
"""Largest size of an integer, in bits: Python writes longer ones only when asked twice."""
_WORD_BITS: Final = 64
_COMPARISON: Final = 20
"""Cost of a comparison of two values with one hash, besides their size."""
_WIDE: Final = re.compile(rb"\*|\d{4}")
"""Pattern of a width in a format."""

_UNARY: Final[Mapping[type[ast.unaryop], Callable[[Any], Any]]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}
_BINARY: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_COMPARISONS: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, container: item in container,
    ast.NotIn: lambda item, container: item not in container,
}


class TooLarge(ValueError):
    """Raised when the constants of a test program exceed the budget."""

    def __init__(self) -> None:
        super().__init__("its constants take too much time or memory: write their values")


class Constants:
    """Evaluates expressions that name nothing but `names`; raises what an operation raises, and TooLarge."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = dict(names)
        self._left = BUDGET

    def define(self, name: str, value: Any) -> None:
        """Let later expressions use a value by name."""
        self._names[name] = value

    def knows(self, name: str) -> bool:
        """Return whether the name has a value."""
        return name in self._names

    def value(self, node: ast.expr) -> Any:
        """Evaluate an expression."""
        found = self._value(node)
        self.charge(found)
        return found

    def charge(self, *values: Any) -> None:
        """Count the work of going through values once."""
        for value in values:
            self.spend(self._size(value))

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._names[node.id]
            case ast.List():
                return [self.value(item) for item in node.elts]
            case ast.Tuple():
                return tuple(self.value(item) for item in node.elts)
            case ast.Set():
                return set(self._distinct([self.value(item) for item in node.elts]))
            case ast.Dict():
                keys = [self._required(key) for key in node.keys]
                self._distinct(keys)
                return dict(zip(keys, map(self.value, node.values), strict=True))
            case ast.UnaryOp():
                return _UNARY[type(node.op)](self.value(node.operand))
            case ast.BinOp():
                return self._binary(node.op, self.value(node.left), self.value(node.right))
            case ast.BoolOp():
                return self._boolean(node)
            case ast.Compare():
                return self._compared(node)
            case ast.Subscript():
                return self.value(node.value)[self.value(node.slice)]
            case ast.Slice():
                return slice(*(part and self.value(part) for part in (node.lower, node.upper, node.step)))
            case ast.Call():
                return self._called(node)
        raise ValueError(f"{ast.unparse(node)[:80]!r} is no constant")

    def _required(self, key: ast.expr | None) -> Any:
        if key is None:
            raise ValueError("a dictionary within a dictionary is no constant")
        return self.value(key)

    def _binary(self, kind: ast.operator, left: Any, right: Any) -> Any:
        is_whole = isinstance(left, int) and isinstance(right, int)
        if is_whole and isinstance(kind, ast.Pow):
            self._require_bits(left.bit_length() * max(0, right))
        elif is_whole and isinstance(kind, ast.LShift):
            self._require_bits(left.bit_length() + right)
        elif is_whole and isinstance(kind, ast.Mult):
            self._require_bits(left.bit_length() + right.bit_length())
        elif isinstance(kind, ast.Mult) and isinstance(left, int) != isinstance(right, int):
            count, repeated = (left, right) if isinstance(left, int) else (right, left)
            self.spend(max(0, count) * self._size(repeated))
        elif isinstance(kind, ast.Mod) and isinstance(left, str | bytes) and _is_wide(left):
            raise TooLarge
        return _BINARY[type(kind)](left, right)

    def _boolean(self, node: ast.BoolOp) -> Any:
        stops_at = isinstance(node.op, ast.Or)
        *first, last = node.values
        for each in first:
            if bool(found := self.value(each)) is stops_at:
                return found
        return self.value(last)

    def _compared(self, node: ast.Compare) -> Any:
        left, found = self.value(node.left), True
        for kind, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node)
            if not (found := _COMPARISONS[type(kind)](left, right)):
                return found
            left = right
        return found

    def _called(self, node: ast.Call) -> Any:
        function = self._value(node.func)
        values = [self.value(argument) for argument in node.args]
        named = {str(keyword.arg): self.value(keyword.value) for keyword in node.keywords}
        if function is range:
            return function(*values, **named)
        if getattr(node.func, "id", "") == "sum" and values and len(values) + len(named) > 1:
            values[0] = list(values[0])
            self.spend(len(values[0]) * sum(map(self._size, (*values, *named.values()))))  # A copy for each item.
        if function in (set, frozenset) and len(values) == 1:
            values[0] = self._distinct(values[0])
        elif function is dict and len(values) == 1 and not isinstance(values[0], dict):
            values[0] = [tuple(pair) for pair in values[0]]
            self._distinct(pair[0] for pair in values[0] if pair)
        return function(*values, **named)

    def _distinct(self, values: Iterable[Any]) -> list[Any]:
        """Return the values without duplicates, as a set takes them, with the cost of every comparison counted."""
        by_hash: dict[int, list[Any]] = {}
        for value in values:
            others = by_hash.setdefault(hash(value), [])
            for number, other in enumerate(others):
                if number:
                    self.spend(_COMPARISON + self._size(value))
                if other is value or other == value:
                    break
            else:
                others.append(value)
        return [value for others in by_hash.values() for value in others]

    def _require_bits(self, num_bits: int) -> None:
        if num_bits > _MAX_BITS:
            raise TooLarge

    def spend(self, amount: int) -> None:
        """Count work; raises TooLarge."""
        self._left -= amount
        if self._left < 0:
            raise TooLarge

    def _size(self, value: Any) -> int:
        """Return how much work it is to go through a value, or a number beyond the budget."""
        size, waiting = 0, [value]
        while waiting and size <= self._left:
            part = waiting.pop()
            size += _ELEMENT
            if isinstance(part, int):
                size += part.bit_length() // _WORD_BITS
            elif isinstance(part, str | bytes | range):
                size += _length(part)
            elif isinstance(part, dict):
                size += _num_comparisons(part)
                waiting += (*part.keys(), *part.values())
            elif isinstance(part, set | frozenset):
                size += _num_comparisons(part)
                waiting += part
            elif isinstance(part, list | tuple):
                waiting += part
        return size


def _num_comparisons(distinct: Iterable[Any]) -> int:
    """Return how many comparisons of values with one hash it takes to look all of them up."""
    return sum(count * (count - 1) for count in Counter(map(hash, distinct)).values())


def _is_wide(template: str | bytes) -> bool:
    """Return whether a format makes something large of something small."""
    return _WIDE.search(template.encode() if isinstance(template, str) else template) is not None


def _length(values: str | bytes | range) -> int:
    if isinstance(values, range):  # Its length need not fit into a word.
        return max(0, -(-(values.stop - values.start) // values.step))
    return len(values)
