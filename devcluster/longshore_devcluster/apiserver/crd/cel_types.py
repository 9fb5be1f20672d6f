"""Types of a schema's values for the check of rules, as protobuf messages: CEL has no other types with fields."""

import re
from typing import Any

from cel_expr_python import cel
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, struct_pb2, timestamp_pb2

from longshore_devcluster.apiserver.crd.cel_library import escaped
from longshore_devcluster.apiserver.schema.node import Schema

_Field = descriptor_pb2.FieldDescriptorProto
_WELL_KNOWN = (duration_pb2, struct_pb2, timestamp_pb2)
_SCALARS = {
    "string": _Field.TYPE_STRING, "int": _Field.TYPE_INT64, "number": _Field.TYPE_DOUBLE, "bool": _Field.TYPE_BOOL,
}  # fmt: skip
_FORMATS = {"date-time": "Timestamp", "duration": "Duration"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def type_of(schema: Schema) -> tuple[descriptor_pool.DescriptorPool, cel.Type]:
    """Return the type of a schema's values, and the pool of the messages in it."""
    file = descriptor_pb2.FileDescriptorProto(name="schema.proto", syntax="proto3")
    file.dependency.extend(known.DESCRIPTOR.name for known in _WELL_KNOWN)
    _add_field(file, file.message_type.add(name="Root"), "value", schema)
    pool = descriptor_pool.DescriptorPool()
    for known in _WELL_KNOWN:
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return pool, cel.NewEnv(pool, variables={"root": cel.Type("Root")}).compile("root.value").return_type()


def _add_field(file: Any, message: Any, name: str, schema: Schema) -> None:
    number = len(message.field) + 1
    # Fields of protobuf also have a name in JSON, and two of one message must not have the same.
    field = message.field.add(name=name, json_name=f"{number}", number=number, label=_Field.LABEL_OPTIONAL)
    item = schema.item if schema.kind in ("list", "map") else None
    if item is not None and item.kind in ("string", "int", "number", "bool", "object"):
        field.label = _Field.LABEL_REPEATED
        if schema.kind == "list":
            _set_type(file, field, item)
        else:
            # The name that protobuf's compiler would give it, which is checked.
            camel = "".join(word[:1].upper() + word[1:] for word in name.split("_"))
            entry = message.nested_type.add(name=f"{camel}Entry")
            entry.options.map_entry = True
            _add_field(file, entry, "key", Schema("string"))
            _add_field(file, entry, "value", item)
            field.type, field.type_name = _Field.TYPE_MESSAGE, f".{message.name}.{entry.name}"
    else:
        _set_type(file, field, schema)


def _set_type(file: Any, field: Any, schema: Schema) -> None:
    if schema.kind in _SCALARS and schema.format not in _FORMATS:
        field.type = _SCALARS[schema.kind]
        return
    field.type = _Field.TYPE_MESSAGE
    if schema.kind != "object":
        # Lists of lists and the like have items of any type: protobuf does not know them.
        known = {"list": "ListValue", "map": "Struct"}.get(schema.kind) or _FORMATS.get(schema.format, "Value")
        field.type_name = f".google.protobuf.{known}"
        return
    message = file.message_type.add(name=f"Object{len(file.message_type)}")
    field.type_name = f".{message.name}"
    for name, child in schema.properties.items():
        if _NAME.fullmatch(escaped(name)):
            _add_field(file, message, escaped(name), child)
