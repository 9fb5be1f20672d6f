"""Reads ``builtin.types``, the table of the API's built-in types."""

import re
from dataclasses import replace
from functools import cache
from importlib import resources

from longshore_devcluster.apiserver.schema.node import Schema

_SCALARS = frozenset(
    {"string", "int", "number", "bool", "any", "time", "microtime", "quantity", "intorstring", "bytes"}
)
_CONTAINER = re.compile(r"(list|map)\((.*)\)$")


class TypeTable:
    """Message types by their name in the table (``Pod``, ``CoreEvent``, ...)."""

    def __init__(self, text: str) -> None:
        self.messages: dict[str, Schema] = {}
        lines = [line.rstrip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        package = ""
        for line in lines:  # names first: types refer to each other in any order, also to themselves
            if line.startswith("package "):
                package = line.split()[1]
            elif line.startswith("message "):
                name, *flags = line.split()[1:]
                full_name = f"{package}.{name.removeprefix('Core') if name.startswith('CoreE') else name}"
                self.messages[name] = Schema("object", name=full_name, atomic="atomic" in flags)
        current = Schema("object")
        embeddings: list[tuple[Schema, Schema]] = []
        for line in lines:
            if line.startswith("message "):
                current = self.messages[line.split()[1]]
            elif line.startswith("  "):
                self._add_field(current, line.split(), embeddings)
        for outer, inner in embeddings:
            outer.properties.update(inner.properties)
            outer.required |= inner.required

    def __getitem__(self, name: str) -> Schema:
        return self.messages[name]

    def _add_field(self, message: Schema, words: list[str], embeddings: list[tuple[Schema, Schema]]) -> None:
        number, name, type_name, *flags = words
        if name == "~":
            message.inlined[int(number)] = self.messages[type_name]
            embeddings.append((message, self.messages[type_name]))
            return
        if number.endswith("!"):
            message.required |= {name}
        number = number.rstrip("!")
        if number != "-":
            message.numbers[int(number)] = name
        node = self._type(type_name)
        message.properties[name] = _flagged(node, flags) if flags else node

    def _type(self, text: str) -> Schema:
        container = _CONTAINER.match(text)
        if container:
            kind = "list" if container[1] == "list" else "map"
            return Schema(kind, item=self._type(container[2]))  # type: ignore[arg-type]
        if text in _SCALARS:
            return Schema(text, preserve_unknown=text == "any")  # type: ignore[arg-type]
        return self.messages[text]


def _flagged(node: Schema, flags: list[str]) -> Schema:
    assert node.kind in ("list", "map", "object"), "only containers carry merge flags"
    # A flagged message keeps sharing its members with the unflagged one, which may still be empty at this point.
    node = node if node.kind == "list" else replace(node)
    for flag in flags:
        key, _, value = flag.partition("=")
        if key == "key":
            node.list_type, node.map_keys = "map", tuple(value.split(","))
        elif key == "set":
            node.list_type = "set"
        elif key == "atomic":
            node.atomic = True
        elif key == "merge":
            node.merge, node.merge_key = True, value or None
        elif key == "replacekeys":
            node.replace_keys = True
        else:
            raise AssertionError(f"builtin.types: unknown flag {flag}")
    return node


@cache
def builtin_types() -> TypeTable:
    """Return the table, read once."""
    text = resources.files(__package__).joinpath("builtin.types").read_text()
    return TypeTable(text)
