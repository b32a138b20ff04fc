"""Protobuf messages from declarations: one text a message, ``name number type`` for each field."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
    "int64": _FIELD.TYPE_INT64,
    "bool": _FIELD.TYPE_BOOL,
}


def message_classes(declarations: Mapping[str, str]) -> dict[str, type[Message]]:
    """The classes of declared messages.

    A type is a scalar or a declared message; ``[]`` before it repeats it, ``map:`` makes it the
    values of a map from text. Fields that are not declared are skipped when a message is read.
    """
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name="declared.proto", syntax="proto3")
    for name, fields in declarations.items():
        message = file.message_type.add(name=name)
        words = fields.split()
        for field, number, kind in zip(words[::3], words[1::3], words[2::3], strict=True):
            _add_field(message, field, int(number), kind)
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        for name in declarations
    }


def _add_field(message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: str) -> None:
    repeated = kind.startswith(("[]", "map:"))
    field = message.field.add(name=name, number=number, json_name=name)
    field.label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
    if kind.startswith("map:"):
        entry = message.nested_type.add(name=f"{name[0].upper()}{name[1:]}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "string")
        _add_field(entry, "value", 2, kind.removeprefix("map:"))
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{message.name}.{entry.name}"
        return
    kind = kind.removeprefix("[]")
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{kind}"
