"""A check of CEL rules against the schema before they run: unknown fields, names and functions."""

from celpy.celparser import CELParseError
from lark import Token, Tree

from longshore_devcluster.apiserver.crd.cel_library import BUILTIN_FUNCTIONS, FUNCTIONS, escaped
from longshore_devcluster.apiserver.schema.node import Schema

_TYPE_NAMES = frozenset(
    ["bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type", "google"]
)
_MACROS = frozenset({"all", "exists", "exists_one", "map", "filter"})
Scope = dict[str, Schema | None]


class BadRule(Exception):
    """The rule cannot be compiled; the text says why, in the real server's form."""


def complaint(rule: str, column: int, why: str, line: int = 1) -> BadRule:
    shown = rule.splitlines()[line - 1] if rule else ""
    return BadRule(f"compilation failed: ERROR: <input>:{line}:{column}: {why}\n | {shown}\n | {'.' * (column - 1)}^")


def from_parse_error(rule: str, error: CELParseError) -> BadRule:
    return complaint(rule, getattr(error, "column", None) or 1, "Syntax error", getattr(error, "line", None) or 1)


def check(rule: str, tree: Tree[Token], scope: Scope) -> None:
    """Raises BadRule for the first thing that cannot be."""
    _Checker(rule).visit(tree, scope)


class _Checker:
    """Follows member accesses from ``self`` and ``oldSelf``; where a type is not known it lets things pass."""

    def __init__(self, rule: str) -> None:
        self._rule = rule

    def visit(self, node: Tree[Token] | Token, scope: Scope) -> Schema | None:
        """Return the node's type, where it is known."""
        if isinstance(node, Token):
            return None
        handler = getattr(self, f"_{node.data}", None)
        if handler is not None:
            found: Schema | None = handler(node, scope)
            return found
        types = [self.visit(child, scope) for child in node.children]
        return types[0] if len(types) == 1 else None

    def _ident(self, node: Tree[Token], scope: Scope) -> Schema | None:
        name = _token(node.children[0])
        if name.value not in scope and name.value not in _TYPE_NAMES:
            raise self._error(name, f"undeclared reference to '{name.value}' (in container '')", 0)
        return scope.get(name.value)

    def _ident_arg(self, node: Tree[Token], scope: Scope) -> Schema | None:
        name = _token(node.children[0])
        if name.value not in BUILTIN_FUNCTIONS and name.value not in FUNCTIONS:
            raise self._error(name, f"undeclared reference to '{name.value}' (in container '')", len(name.value))
        for child in node.children[1:]:
            self.visit(child, scope)
        return None

    def _member_dot(self, node: Tree[Token], scope: Scope) -> Schema | None:
        owner, name = self.visit(node.children[0], scope), _token(node.children[1])
        if owner is None or owner.kind in ("any", "intorstring"):
            return None
        if owner.kind in ("object", "map"):
            known = {escaped(field): child for field, child in owner.properties.items()}
            if name.value in known:
                return known[name.value]
            if owner.item is not None:
                return owner.item
        raise self._error(name, f"undefined field '{name.value}'", -1)

    def _member_index(self, node: Tree[Token], scope: Scope) -> Schema | None:
        owner = self.visit(node.children[0], scope)
        self.visit(node.children[1], scope)
        return owner.item if owner is not None else None

    def _member_dot_arg(self, node: Tree[Token], scope: Scope) -> Schema | None:
        owner, name = self.visit(node.children[0], scope), _token(node.children[1])
        if name.value not in BUILTIN_FUNCTIONS and name.value not in FUNCTIONS:
            raise self._error(name, f"undeclared reference to '{name.value}' (in container '')", len(name.value))
        arguments = node.children[2:]
        if name.value in _MACROS and arguments:
            return self._macro(name.value, owner, _tree(arguments[0]), scope)
        for child in arguments:
            self.visit(child, scope)
        return owner if name.value in ("orValue", "value") else None

    def _macro(self, name: str, owner: Schema | None, arguments: Tree[Token], scope: Scope) -> Schema | None:
        variable = next(arguments.children[0].scan_values(lambda value: True))  # type: ignore[union-attr]
        item = owner.item if owner is not None and owner.kind == "list" else None
        inner = {**scope, str(variable): item}
        for child in arguments.children[1:]:
            self.visit(child, inner)
        return owner if name == "filter" else None

    def _fieldinits(self, node: Tree[Token], scope: Scope) -> Schema | None:
        for child in node.children:
            if isinstance(child, Tree):
                self.visit(child, scope)
        return None

    def _error(self, name: Token, why: str, shift: int) -> BadRule:
        return complaint(self._rule, (name.column or 1) + shift, why, name.line or 1)


def _token(node: Tree[Token] | Token) -> Token:
    assert isinstance(node, Token)
    return node


def _tree(node: Tree[Token] | Token) -> Tree[Token]:
    assert isinstance(node, Tree)
    return node
