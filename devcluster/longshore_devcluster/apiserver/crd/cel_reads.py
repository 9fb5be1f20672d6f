"""Which members of its value a rule reads: most rules read few of a large object."""

from collections import defaultdict
from collections.abc import Iterator, Set

from lark import Token, Tree

from longshore_devcluster.apiserver.crd.cel_library import escaped
from longshore_devcluster.apiserver.schema.node import Json, Schema

Path = tuple[str, ...]
"""Names of members as expressions write them; an empty path is the value itself."""
_WRAPPERS = frozenset({"member", "primary"})


def reads(tree: Tree[Token], variable: str) -> frozenset[Path]:
    """Return the members of `variable` that an expression reads, each with all that is below it."""
    return frozenset(_reads(tree, variable))


def only(value: Json, schema: Schema | None, paths: Set[Path]) -> Json:
    """Return the part of a value that these paths lead to; an expression that reads no more sees no difference."""
    if () in paths or not isinstance(value, dict):
        return value
    below: defaultdict[str, set[Path]] = defaultdict(set)
    for name, *rest in paths:
        below[name].add(tuple(rest))
    has_fields = schema is not None and schema.kind == "object"
    read = ((name, below.get(escaped(name) if has_fields else name)) for name in value)
    return {name: only(value[name], schema and schema.child(name), rest) for name, rest in read if rest is not None}


def _reads(node: Tree[Token] | Token, variable: str) -> Iterator[Path]:
    if isinstance(node, Token):
        if node == variable:
            yield ()  # In a form that is not known here.
        return
    path = _path(node, variable)
    if path is not None:
        yield path
        return
    for child in node.children:
        yield from _reads(child, variable)


def _path(node: Tree[Token] | Token, variable: str) -> Path | None:
    """Return the path of `variable.a.b`; None for every other expression."""
    if isinstance(node, Token):
        return None
    if node.data in _WRAPPERS and len(node.children) == 1:
        return _path(node.children[0], variable)
    if node.data == "ident":
        return () if node.children[0] == variable else None
    if node.data == "member_dot":
        owner = _path(node.children[0], variable)
        return None if owner is None else (*owner, str(node.children[1]))
    return None
