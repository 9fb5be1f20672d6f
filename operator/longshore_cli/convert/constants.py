"""Values of expressions in a Python script whose text says them: literals, and names that are assigned once."""

import ast
import operator
from collections.abc import Callable, Iterator
from typing import Any, Final

from longshore_cli.convert.bindings import Bindings, Unclear

_ARITHMETIC: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_MAX_DEPTH: Final = 50
"""More is a name that stands for itself."""


def value(expression: ast.expr, bindings: Bindings, depth: int = 0) -> Any:
    """Return the value of an expression; raises Unclear."""
    if depth > _MAX_DEPTH:
        raise Unclear
    if isinstance(expression, ast.Name):
        return value(bindings.constant(expression.id), bindings, depth + 1)
    if isinstance(expression, ast.List | ast.Tuple):
        return [value(one, bindings, depth + 1) for one in expression.elts]
    if isinstance(expression, ast.BinOp):
        return _arithmetic(expression, bindings, depth)
    if isinstance(expression, ast.JoinedStr):
        return "".join(str(value(one, bindings, depth + 1)) for one in expression.values)
    if isinstance(expression, ast.FormattedValue) and expression.format_spec is None and expression.conversion < 0:
        return value(expression.value, bindings, depth + 1)
    if isinstance(expression, ast.Dict | ast.Call):
        return {key: value(one, bindings, depth + 1) for key, one in items(expression, bindings, depth)}
    try:
        return ast.literal_eval(expression)
    except ValueError as error:
        raise Unclear from error


def items(mapping: ast.expr, bindings: Bindings, depth: int = 0) -> Iterator[tuple[str, ast.expr]]:
    """Yield keys and values of `{"key": value}`, `dict(key=value)` or a name of one; raises Unclear."""
    if depth > _MAX_DEPTH:
        raise Unclear
    if isinstance(mapping, ast.Name):
        yield from items(bindings.constant(mapping.id), bindings, depth + 1)
    elif isinstance(mapping, ast.Dict):
        for key, one in zip(mapping.keys, mapping.values, strict=True):
            yield from items(one, bindings, depth + 1) if key is None else [(_key(key, bindings, depth), one)]
    elif isinstance(mapping, ast.Call) and not mapping.args and bindings.is_built_in(mapping.func, "dict"):
        for keyword in mapping.keywords:
            known = keyword.arg is not None
            yield from [(str(keyword.arg), keyword.value)] if known else items(keyword.value, bindings, depth + 1)
    else:
        raise Unclear


def _key(expression: ast.expr, bindings: Bindings, depth: int) -> str:
    key = value(expression, bindings, depth + 1)
    if not isinstance(key, str):
        raise Unclear
    return key


def _arithmetic(expression: ast.BinOp, bindings: Bindings, depth: int) -> Any:
    left, right = (value(one, bindings, depth + 1) for one in (expression.left, expression.right))
    function = _ARITHMETIC.get(type(expression.op))
    if function is None or not all(isinstance(one, int | float) for one in (left, right)):
        raise Unclear
    try:
        return function(left, right)
    except (ZeroDivisionError, OverflowError) as error:
        raise Unclear from error
