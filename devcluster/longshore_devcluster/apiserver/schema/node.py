"""Schema nodes: the one description of types that every other part of the server reads.

Built-in types (``builtin.types``) and custom resources (``crdschema``) both become trees of :class:`Schema`; strict
decoding, pruning, defaulting, patch merging, field ownership, protobuf and OpenAPI all walk the same tree.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

Json = Any
Object = dict[str, Any]

Kind = Literal[
    "object", "map", "list", "string", "int", "number", "bool", "any", "time", "microtime", "quantity",
    "intorstring", "bytes",
]  # fmt: skip
ListType = Literal["atomic", "set", "map"]


@dataclass(slots=True, frozen=True)
class Rule:
    """One ``x-kubernetes-validations`` entry."""

    rule: str
    message: str = ""
    message_expression: str = ""
    reason: str = "FieldValueInvalid"
    field_path: str = ""
    optional_old_self: bool | None = None


@dataclass(slots=True, frozen=True)
class Limits:
    """Value constraints of a custom resource's schema, as JSON Schema spells them (``minimum``, ``pattern``, ...)."""

    values: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Schema:
    """One node. ``item`` is the element type of a list and the value type of a map."""

    kind: Kind
    name: str = ""
    description: str = ""
    properties: dict[str, "Schema"] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    item: "Schema | None" = None
    atomic: bool = False
    list_type: ListType = "atomic"
    map_keys: tuple[str, ...] = ()
    merge_key: str | None = None
    merge: bool = False
    replace_keys: bool = False
    numbers: dict[int, str] = field(default_factory=dict)
    inlined: dict[int, "Schema"] = field(default_factory=dict)
    preserve_unknown: bool = False
    embedded: bool = False
    nullable: bool = False
    format: str = ""
    has_default: bool = False
    default: Json = None
    limits: Limits = Limits()
    rules: tuple[Rule, ...] = ()
    source: Object | None = None

    def child(self, key: str) -> "Schema | None":
        """Return the node of a member named ``key``, or None where the schema does not know it."""
        if self.kind == "object":
            found = self.properties.get(key)
            return self.item if found is None else found
        return self.item if self.kind == "map" else None


ANY = Schema("any", preserve_unknown=True)
