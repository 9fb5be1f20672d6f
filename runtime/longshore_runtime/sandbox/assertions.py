"""Test programs of assertions, as of HumanEval and MBPP: read as calls and conditions, and judged outside the sandbox.

Run alongside the program that they test, assertions would be no more than a claim of it: it could replace whatever they
call, or end before them. So a test program is never run. The calls of the tested function go into the sandbox with
their arguments, the values come out as data, and the conditions are evaluated here.
"""

import ast
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import CodeType
from typing import Any, Final

from longshore_runtime.sandbox import literals
from longshore_runtime.sandbox.constants import Constants, TooLarge


def _round(number: Any, ndigits: Any = None) -> Any:
    """Round as Python does, which computes the power of ten of an integer even where the result is 0."""
    if isinstance(number, int) and isinstance(ndigits, int) and -ndigits > number.bit_length():
        return 0
    return round(number, ndigits)


def _sum(values: Iterable[Any], start: Any = 0) -> Any:
    """Add as Python does, which copies a sequence for each that it adds to it."""
    if type(start) not in (list, tuple):
        return sum(values, start)
    parts = list(values)
    if any(type(part) is not type(start) for part in parts):
        raise TypeError("sequences of different types cannot be added")
    return type(start)(chain(start, *parts))


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    function.__name__: function
    for function in (
        abs, all, any, bool, dict, float, frozenset, int, isinstance, len, list, max, min, range, reversed, set, sorted,
        str, tuple, zip, complex, enumerate,
    )
} | {"round": _round, "sum": _sum}  # fmt: skip
_MATHS: Final = {"isclose": math.isclose, "pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan}
_NODES: Final = (
    ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator, ast.BoolOp,
    ast.boolop, ast.Compare, ast.cmpop, ast.Name, ast.expr_context, ast.Call, ast.keyword, ast.Subscript, ast.Slice,
)  # fmt: skip
_ON_RESULTS: Final = (ast.Add, ast.Sub, ast.Div)
"""Operations that conditions may do with a value of the program: none makes a large value of small ones."""
_MATHS_PREFIX: Final = "_math_"
_RESULT: Final = "_result"
_FOLDED: Final = "_folded"
_NODE_COST: Final = 20
"""Part of the budget of constants that reading a node of the syntax tree uses up."""
_CALL_COST: Final = 1000
"""Part of the same budget that a call of the tested function, or an assertion, uses up."""
_HOW: Final = "a test program may have assertions about calls of the tested function, with literals as arguments"


@dataclass(frozen=True)
class Call:
    """One call of the tested function."""

    arguments: Sequence[Any]
    keywords: Mapping[str, Any]


@dataclass(frozen=True)
class Assertion:
    """A condition on the values of some calls."""

    text: str
    code: CodeType
    calls: tuple[int, ...]
    """Numbers of the test program's calls whose values the condition is about."""
    folded: Mapping[str, Any]
    """Values of the names that stand for parts without such values."""

    @property
    def constant_bytes(self) -> int:
        """Size of its constants, written as the values of a program are."""
        return sum(map(_written_bytes, (*self.folded.values(), *self.code.co_consts)))

    def holds(self, values: Sequence[Any]) -> bool:
        """Return whether the condition is true for the values of all calls; one that cannot be evaluated is not.

        What is evaluated was read from the data set, and holds nothing but what `_checked` lets through.
        """
        names = {f"{_RESULT}{number}": values[number] for number in self.calls}
        try:
            return bool(eval(self.code, {"__builtins__": {}}, {**_names(), **self.folded, **names}))
        except Exception:  # noqa: BLE001 - as an assertion that raises: sorting what has no order, and so on
            return False


@dataclass(frozen=True)
class AssertionProgram:
    """Calls and assertions that a test program asks for."""

    text: str
    """Text of the test program."""
    calls: tuple[Call, ...]
    assertions: tuple[Assertion, ...]

    @property
    def shown(self) -> list[list[str]]:
        """The calls, as the program gets to see them."""
        return [[literals.dumps(list(call.arguments)), literals.dumps(dict(call.keywords))] for call in self.calls]

    @property
    def constant_bytes(self) -> int:
        """Size of the constants of all assertions."""
        return sum(assertion.constant_bytes for assertion in self.assertions)

    def broken(self, values: Sequence[Any]) -> str | None:
        """Return the first assertion that does not hold; None: all hold."""
        return next((one.text for one in self.assertions if not one.holds(values)), None)


def read_test_program(text: str, entry: str) -> AssertionProgram:
    """Read a test program; raises ValueError, with the line, for what is more than assertions about literals.

    `entry`: name of the tested function. Assertions stand at the top, or in functions with one parameter, as
    `check(candidate)`, which stands for the tested function.
    """
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"is not Python ({error})") from error
    reader = _Reader(entry)
    try:
        reader.charge(module)
        reader.read(module.body, entry)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    except TooLarge as error:
        raise ValueError("is too long: spread its assertions over several test cases") from error
    if not reader.assertions:
        raise ValueError(f"holds no assertion; {_HOW}")
    if not reader.calls:  # Every program would pass.
        raise ValueError(f"holds no assertion that calls {entry}; {_HOW}")
    return AssertionProgram(text, tuple(reader.calls), tuple(reader.assertions))


class _Reader:
    def __init__(self, entry: str) -> None:
        self._entry = entry
        self._constants = Constants(_names())
        self.calls: list[Call] = []
        self.assertions: list[Assertion] = []

    def charge(self, module: ast.Module) -> None:
        """Count the work of reading a test program; raises TooLarge."""
        for node in ast.walk(module):
            self._constants.spend(_CALL_COST if isinstance(node, ast.Call | ast.Assert) else _NODE_COST)

    def read(self, body: Sequence[ast.stmt], tested: str) -> None:
        for statement in body:
            match statement:
                case ast.Assert():
                    self._assertion(statement.test, tested)
                case ast.FunctionDef(args=ast.arguments(args=[ast.arg(arg=name)]), decorator_list=[]):
                    self.read(statement.body, name)
                case ast.Assign(targets=[ast.Name(id=name)]):
                    self._constants.define(name, self._constant(statement.value))
                case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Expr(value=ast.Constant()):
                    continue
                case ast.Expr(value=ast.Call(args=[ast.Name(id=name)], keywords=[])) if name == self._entry:
                    continue  # check(entry)
                case _:
                    raise ValueError(f"line {statement.lineno}: {_HOW}, not {ast.unparse(statement)[:80]!r}")

    def _assertion(self, condition: ast.expr, tested: str) -> None:
        text, first = ast.unparse(condition), len(self.calls)
        prepared = _prepared(_Calls(tested, self._take).visit(condition))
        _checked(prepared, self._constants.knows)
        folded: dict[str, Any] = {}
        try:
            prepared = _Folding(self._constants, folded).visit(prepared)
        except Exception as error:
            raise _not_evaluated(condition.lineno, text, error) from error
        code = compile(ast.fix_missing_locations(ast.Expression(prepared)), "<assertion>", "eval")
        self.assertions.append(Assertion(text, code, tuple(range(first, len(self.calls))), folded))

    def _take(self, call: ast.Call) -> ast.Name:
        if any(isinstance(argument, ast.Starred) for argument in call.args) or None in {k.arg for k in call.keywords}:
            raise ValueError(f"line {call.lineno}: {_HOW}, not {ast.unparse(call)[:80]!r}")
        arguments = [self._constant(argument) for argument in call.args]
        keywords = {str(keyword.arg): self._constant(keyword.value) for keyword in call.keywords}
        self.calls.append(Call(arguments, keywords))
        name = ast.Name(f"{_RESULT}{len(self.calls) - 1}", ast.Load())
        return ast.copy_location(name, call)

    def _constant(self, expression: ast.expr) -> Any:
        prepared = _prepared(expression)
        _checked(prepared, self._constants.knows)
        try:
            value = self._constants.value(prepared)
            self._constants.charge(value)  # It is written down, to see whether it can be.
            literals.dumps(value)
        except Exception as error:
            raise _not_evaluated(expression.lineno, ast.unparse(expression), error) from error
        return value


class _Calls(ast.NodeTransformer):
    """Replaces the calls of the tested function by names of their values."""

    def __init__(self, tested: str, take: Callable[[ast.Call], ast.Name]) -> None:
        self._tested, self._take = tested, take

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if ast.unparse(node.func) == self._tested:
            return self._take(node)
        return self.generic_visit(node)


class _MathNames(ast.NodeTransformer):
    """Replaces `math.isclose` by a name."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == "math" and node.attr in _MATHS:
            return ast.copy_location(ast.Name(_MATHS_PREFIX + node.attr, ast.Load()), node)
        return node


class _Folding(ast.NodeTransformer):
    """Replaces all that does not depend on values of the program by names of its own values."""

    def __init__(self, constants: Constants, folded: dict[str, Any]) -> None:
        self._constants, self._folded = constants, folded

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, ast.expr) or isinstance(node, ast.Constant | ast.Slice) or _has_result(node):
            return super().visit(node)
        value = self._constants.value(node)
        if callable(value):
            return node
        self._constants.charge(value)  # It is gone through once more where it meets a value of the program.
        if hasattr(value, "__next__"):  # It can be gone through only once, and assertions are judged again and again.
            value = list(value)
        name = f"{_FOLDED}{len(self._folded)}"
        self._folded[name] = value
        return ast.copy_location(ast.Name(name, ast.Load()), node)


def _prepared(expression: ast.expr) -> ast.expr:
    replaced: ast.expr = _MathNames().visit(expression)
    return ast.fix_missing_locations(replaced)


def _not_evaluated(line: int, text: str, error: Exception) -> ValueError:
    return ValueError(f"line {line}: {text[:80]!r} is no literal ({error})")


def _written_bytes(constant: Any) -> int:
    try:
        return len(literals.dumps(constant))
    except (TypeError, ValueError, RecursionError):
        return 0  # No program can return it.


def _names() -> dict[str, Any]:
    return {**_FUNCTIONS, **{_MATHS_PREFIX + name: value for name, value in _MATHS.items()}}


def _checked(expression: ast.expr, is_constant: Callable[[str], bool]) -> None:
    """Raise ValueError for anything but literals, constants, comparisons and the functions named above."""
    for node in ast.walk(expression):
        known = isinstance(node, _NODES)
        if isinstance(node, ast.Name):
            known = is_constant(node.id) or node.id.startswith(_RESULT)
        elif isinstance(node, ast.Call):
            known = isinstance(node.func, ast.Name) and not (node.func.id == "range" and _has_result(node))
        elif isinstance(node, ast.BinOp) and not isinstance(node.op, _ON_RESULTS):
            known = not _has_result(node)
        if not known:
            raise ValueError(f"line {expression.lineno}: {_HOW}, not {ast.unparse(node)[:80]!r}")


def _has_result(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Name) and part.id.startswith(_RESULT) for part in ast.walk(node))
