"""Sets of field paths, as ``metadata.managedFields`` keeps them (format FieldsV1), and comparison of objects by path.

A path is a tuple of elements: ``f:name`` (a member), ``k:{...}`` (a list item by its keys), ``v:...`` (a set's value).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import orjson

from longshore_devcluster.apiserver.schema.node import ANY, Json, Object, Schema

Path = tuple[str, ...]
Paths = frozenset[Path]
_SORTED = orjson.OPT_SORT_KEYS


def encode(paths: Iterable[Path]) -> Object:
    """Encode a set as FieldsV1."""
    root: Object = {}
    members = set(paths)
    for path in sorted(members):
        node = root
        for element in path:
            node = node.setdefault(element, {})
    _mark(root, (), members)
    return root


def _mark(node: Object, path: Path, members: set[Path]) -> None:
    for element, child in list(node.items()):
        child_path = (*path, element)
        _mark(child, child_path, members)
        if child and child_path in members:
            node[element] = {".": {}, **child}


def decode(fields: Object) -> Paths:
    """Return the set of a FieldsV1 value."""
    return frozenset(_decode(fields, ()))


def _decode(node: Object, path: Path) -> Iterator[Path]:
    if path and (not node or "." in node):
        yield path
    for element, child in node.items():
        if element != ".":
            yield from _decode(child, (*path, element))


def show(path: Path) -> str:
    """Return a path as conflict messages print it: ``.spec.containers[name="c"].image``."""
    shown = ""
    for element in path:
        kind, _, rest = element.partition(":")
        if kind == "f":
            shown += f".{rest}"
        elif kind == "k":
            keys = orjson.loads(rest)
            shown += "[" + ",".join(f"{k}={orjson.dumps(v).decode()}" for k, v in sorted(keys.items())) + "]"
        else:
            shown += f"[={rest}]"
    return shown


def item_element(item: Json, schema: Schema) -> str | None:
    """Return how a list item is addressed, or None where its keys are missing."""
    if schema.list_type == "set":
        return "v:" + orjson.dumps(item, option=_SORTED).decode()
    if not isinstance(item, dict) or schema.item is None:
        return None
    keys = {}
    for name in schema.map_keys:
        value = item.get(name)
        if value is None:
            node = schema.item.properties.get(name)
            value = node.default if node and node.has_default else None
            if value is None and name == "protocol":  # the one built-in key with a default
                value = "TCP"
            if value is None:
                continue
        keys[name] = value
    return "k:" + orjson.dumps(keys, option=_SORTED).decode() if keys else None


def is_granular_list(schema: Schema) -> bool:
    return schema.kind == "list" and schema.list_type != "atomic" and not schema.atomic


def is_granular_map(value: Json, schema: Schema) -> bool:
    return isinstance(value, dict) and not schema.atomic and schema.kind in ("object", "map", "any")


def node_of(schema: Schema, name: str) -> Schema:
    """Return the node of a member; members the schema does not know are taken as they come."""
    return schema.child(name) or ANY


def members(value: Json, schema: Schema) -> dict[str, tuple[Json, Schema]] | None:
    """Return the separately owned parts of a value by path element, or None for a leaf."""
    if is_granular_map(value, schema):
        return {f"f:{name}": (member, node_of(schema, name)) for name, member in value.items()}
    if is_granular_list(schema) and isinstance(value, list):
        assert schema.item is not None
        parts = {}
        for item in value:
            element = item_element(item, schema)
            if element is not None:
                parts[element] = (item, schema.item)
        return parts
    return None


def of_applied(value: Json, schema: Schema, path: Path = ()) -> Iterator[Path]:
    """Yield the fields that an apply configuration sets: its leaves, list items and empty maps."""
    parts = members(value, schema)
    if parts is None or (not parts and path):
        yield path
        return
    for element, (member, node) in parts.items():
        child = (*path, element)
        without_schema = node.kind == "any" and isinstance(member, dict)
        if element.startswith(("k:", "v:")) or without_schema:
            yield child
        if not element.startswith("v:"):
            yield from of_applied(member, node, child)


def everything(value: Json, schema: Schema, path: Path) -> Iterator[Path]:
    """Yield all paths of a value, containers included."""
    yield path
    if path and path[-1].startswith("v:"):
        return
    for element, (member, node) in (members(value, schema) or {}).items():
        yield from everything(member, node, (*path, element))


@dataclass(slots=True)
class Comparison:
    """How one object differs from another, by path."""

    added: set[Path] = field(default_factory=set)
    removed: set[Path] = field(default_factory=set)
    modified: set[Path] = field(default_factory=set)


def compare(old: Json, new: Json, schema: Schema) -> Comparison:
    result = Comparison()
    _compare(old, new, schema, (), result)
    return result


def _compare(old: Json, new: Json, schema: Schema, path: Path, result: Comparison) -> None:
    if old == new:
        return
    old_parts, new_parts = members(old, schema), members(new, schema)
    if old_parts is None or new_parts is None:
        result.modified.add(path)
        if old_parts is not None:
            result.removed.update(p for p in everything(old, schema, path) if p != path)
        if new_parts is not None:
            result.added.update(p for p in everything(new, schema, path) if p != path)
        return
    for element, (member, node) in new_parts.items():
        child = (*path, element)
        if element in old_parts:
            _compare(old_parts[element][0], member, node, child, result)
        else:
            result.added.update(everything(member, node, child))
    for element, (member, node) in old_parts.items():
        if element not in new_parts:
            result.removed.update(everything(member, node, (*path, element)))
