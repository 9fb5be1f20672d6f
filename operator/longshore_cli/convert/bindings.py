"""What names stand for in a Python script, as far as its text says so for certain."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_COMPOUND: Final = (ast.If, ast.Try, ast.For, ast.While, ast.With, ast.Match)
"""Statements whose bodies may not run, or not once."""
_CHANGES: Final = {"update", "setdefault", "pop", "popitem", "clear", "append", "extend", "insert", "remove"}
"""Methods that change what they belong to."""
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Unclear(Exception):
    """The text of a script does not say what something is."""


@dataclass(frozen=True)
class _Binding:
    origin: str | None
    """Where a function or module can be imported from; None: it is made by the program, or inside a function."""
    is_certain: bool
    """Whether it always happens, so that a later one takes its place."""
    value: ast.expr | None = None
    """What is assigned."""


class Bindings:
    """All names that a script binds. `script`: its file."""

    def __init__(self, tree: ast.Module, script: str) -> None:
        self._script = script
        self._bindings: dict[str, list[_Binding]] = defaultdict(list)
        self._whole: list[str] = []
        """Modules of which everything is imported."""
        self._changed = {name for node in ast.walk(tree) if (name := _changed(node)) is not None}
        for statement in tree.body:
            self._statement(statement, is_certain=not isinstance(statement, _COMPOUND), is_local=False)

    def origin(self, expression: ast.expr) -> str:
        """Return where something is imported from: `module.name`, `FILE.py:name`, or its name where nothing binds it.

        Raises:
            Unclear: it is bound in several ways, inside a function, to what the program makes, or is no name.
        """
        if isinstance(expression, ast.Attribute):
            base = self.origin(expression.value)
            if base.startswith(f"{self._script}:"):
                raise Unclear
            return f"{base}.{expression.attr}"
        if not isinstance(expression, ast.Name):
            raise Unclear
        origins = {one.origin for one in self._that_count(expression.id)}
        if not origins and self._whole:
            origins = {f"{module}.{expression.id}" for module in self._whole}
        if len(origins) > 1 or None in origins:
            raise Unclear
        return next((one for one in origins if one), expression.id)

    def constant(self, name: str) -> ast.expr:
        """Return what a name stands for that the script assigns once, at its top level; raises Unclear."""
        bound = self._bindings[name]
        if len(bound) != 1 or not bound[0].is_certain or bound[0].value is None or name in self._changed:
            raise Unclear
        return bound[0].value

    def is_built_in(self, function: ast.expr, name: str) -> bool:
        """Return whether a function is the one that Python has by this name."""
        return isinstance(function, ast.Name) and function.id == name and not self._bindings[name]

    def _that_count(self, name: str) -> list[_Binding]:
        """Return the bindings that count: the last one that always happens, and all that may not happen."""
        certain = [one for one in self._bindings[name] if one.is_certain]
        return certain[-1:] + [one for one in self._bindings[name] if not one.is_certain]

    def _statement(self, node: ast.AST, *, is_certain: bool, is_local: bool) -> None:
        for name, origin in _names(node, self._script):
            if name == "*":
                self._whole.append(origin)
                continue
            is_function = isinstance(node, _Scope) or isinstance(_assigned(node), ast.Lambda)
            is_known = not origin.startswith(f"{self._script}:") or (is_function and not is_local)
            self._bindings[name].append(
                _Binding(origin if is_known else None, is_certain and not is_local, _assigned(node))
            )
        if isinstance(node, ast.Assign | ast.AnnAssign) and _assigned(node) is not None:
            inner: Iterable[ast.AST] = [node.value] if node.value else []
        else:
            inner = ast.iter_child_nodes(node)
        is_inside = is_local or isinstance(node, _Scope | ast.Lambda | ast.comprehension)
        for child in inner:
            self._statement(child, is_certain=is_certain, is_local=is_inside)


def _names(node: ast.AST, script: str) -> Iterator[tuple[str, str]]:
    """Yield names that a node itself binds, and where they can be imported from."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            first = alias.name.partition(".")[0]
            yield (alias.asname, alias.name) if alias.asname else (first, first)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            path = f"{node.module}.{alias.name}" if node.module else alias.name
            yield ("*", node.module or "") if alias.name == "*" else (alias.asname or alias.name, path)
    elif isinstance(node, _Scope):
        yield node.name, f"{script}:{node.name}"
    elif isinstance(node, ast.arg):
        yield node.arg, f"{script}:{node.arg}"
    elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id, f"{script}:{node.id}"
    elif (name := _target(node)) is not None:
        yield name, f"{script}:{name}"


def _target(node: ast.AST) -> str | None:
    """Return the only name that a statement assigns to."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else None


def _assigned(node: ast.AST) -> ast.expr | None:
    return node.value if isinstance(node, ast.Assign | ast.AnnAssign) and _target(node) is not None else None


def _changed(node: ast.AST) -> str | None:
    """Return the name of what a node may change in place."""
    if not isinstance(node, ast.Subscript | ast.Attribute) or not isinstance(node.value, ast.Name):
        return None
    is_change = node.attr in _CHANGES if isinstance(node, ast.Attribute) else not isinstance(node.ctx, ast.Load)
    return node.value.id if is_change else None
