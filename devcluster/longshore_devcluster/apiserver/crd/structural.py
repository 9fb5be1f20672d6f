"""From a CustomResourceDefinition's JSON schema to :class:`Schema` nodes; pruning and defaulting."""

from longshore_devcluster.apiserver.schema.builtin import builtin_types
from longshore_devcluster.apiserver.schema.node import Json, Limits, Object, Rule, Schema
from longshore_devcluster.apiserver.store import copied

_LIMITS = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern",
    "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "enum", "format", "allOf", "anyOf",
    "oneOf", "not",
)  # fmt: skip
_KINDS = {
    "object": "object", "array": "list", "string": "string", "integer": "int", "number": "number",
    "boolean": "bool",
}  # fmt: skip


def structural(source: Object, *, root: bool = False) -> Schema:
    """Return the node of a schema. The root also knows apiVersion, kind and metadata."""
    kind = "intorstring" if source.get("x-kubernetes-int-or-string") else _KINDS.get(source.get("type", ""), "any")
    node = Schema(kind)  # type: ignore[arg-type]
    node.description = source.get("description", "")
    node.nullable = bool(source.get("nullable"))
    node.preserve_unknown = bool(source.get("x-kubernetes-preserve-unknown-fields"))
    node.embedded = bool(source.get("x-kubernetes-embedded-resource"))
    node.format = source.get("format", "")
    node.has_default = "default" in source
    node.default = source.get("default")
    node.required = frozenset(source.get("required") or ())
    node.limits = Limits({name: source[name] for name in _LIMITS if name in source})
    node.rules = tuple(_rule(rule) for rule in source.get("x-kubernetes-validations") or ())
    node.source = source
    if kind == "object":
        node.properties = {name: structural(s) for name, s in (source.get("properties") or {}).items()}
        _add_values(node, source.get("additionalProperties"))
        node.atomic = source.get("x-kubernetes-map-type") == "atomic"
    elif kind == "list":
        node.item = structural(source.get("items") or {})
        node.list_type = source.get("x-kubernetes-list-type", "atomic")
        node.map_keys = tuple(source.get("x-kubernetes-list-map-keys") or ())
    if root or node.embedded:
        node.properties["apiVersion"] = node.properties["kind"] = Schema("string")
        node.properties["metadata"] = builtin_types()["ObjectMeta"]
    return node


def _add_values(node: Schema, values: Json) -> None:
    if isinstance(values, dict):
        node.item = structural(values)
        if not node.properties:
            node.kind = "map"
    elif values is True:
        node.preserve_unknown = True


def _rule(source: Object) -> Rule:
    return Rule(
        source["rule"],
        source.get("message", ""),
        source.get("messageExpression", ""),
        source.get("reason") or "FieldValueInvalid",
        source.get("fieldPath", ""),
        source.get("optionalOldSelf"),
    )


def prune(value: Json, schema: Schema, path: str = "", *, root: bool = True) -> list[str]:
    """Remove the members that the schema does not know, in place; return their paths."""
    unknown: list[str] = []
    if isinstance(value, dict) and schema.kind in ("object", "map", "any", "intorstring"):
        for name in list(value):
            child_path = f"{path}.{name}" if path else name
            if root and name == "metadata":
                continue
            node = schema.child(name)
            if node is not None:
                unknown += prune(value[name], node, child_path, root=node.embedded)
            elif not schema.preserve_unknown:
                del value[name]
                unknown.append(child_path)
    elif isinstance(value, list) and schema.item is not None:
        for index, item in enumerate(value):
            unknown += prune(item, schema.item, f"{path}[{index}]", root=False)
    return unknown


def fill_defaults(value: Json, schema: Schema) -> None:
    """Fill in defaults, in place; a null that is not allowed counts as missing."""
    if isinstance(value, dict):
        for name, node in schema.properties.items():
            if value.get(name) is None and name in value and not node.nullable:
                del value[name]
            if node.has_default and name not in value:
                value[name] = copied({"": node.default})[""]
            if value.get(name) is not None and name != "metadata":
                fill_defaults(value[name], node)
        if schema.item is not None:
            for name, member in value.items():
                if name not in schema.properties:
                    fill_defaults(member, schema.item)
    elif isinstance(value, list) and schema.item is not None:
        for item in value:
            fill_defaults(item, schema.item)
