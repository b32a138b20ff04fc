"""Protobuf bodies of the few built-in kinds that kubectl creates itself: namespaces, evictions, ...

kubectl's generated clients send protobuf and fall back to nothing (client-go, ``rest/client.go``:
built-in resources "will not degrade to JSON"). All else comes as JSON, and answers always are JSON.
Field numbers are those of the ``generated.proto`` files of k8s.io/api.
"""

from __future__ import annotations

import functools

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError, Message

from dra.common.resources import Obj
from sim.apiserver import errors

_MAGIC = b"k8s\x00"
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
    "int64": _FIELD.TYPE_INT64,
    "bool": _FIELD.TYPE_BOOL,
}
# A message's fields, each as ``name number type``. A type is a scalar or a declared message; ``[]``
# before it repeats it, ``map:`` makes it the values of a map from text.
_MESSAGES = {
    "ObjectMeta": "name 1 string generateName 2 string namespace 3 string uid 5 string "
    "resourceVersion 6 string labels 11 map:string annotations 12 map:string "
    "finalizers 14 []string",
    "Preconditions": "uid 1 string resourceVersion 2 string",
    "DeleteOptions": "gracePeriodSeconds 1 int64 preconditions 2 Preconditions "
    "propagationPolicy 4 string dryRun 5 []string",
    "TypeMeta": "apiVersion 1 string kind 2 string",
    "Unknown": "typeMeta 1 TypeMeta raw 2 bytes",
}
_KINDS = {
    "Namespace": "metadata 1 ObjectMeta",
    "ServiceAccount": "metadata 1 ObjectMeta",
    "ConfigMap": "metadata 1 ObjectMeta data 2 map:string binaryData 3 map:bytes immutable 4 bool",
    "Secret": "metadata 1 ObjectMeta data 2 map:bytes type 3 string stringData 4 map:string "
    "immutable 5 bool",
    "Eviction": "metadata 1 ObjectMeta deleteOptions 2 DeleteOptions",
    "DeleteOptions": "",
}


def decode(body: bytes) -> Obj:
    """The object in a protobuf body.

    Raises:
        ApiError: 415 for a kind that is not known here, 400 for broken bytes.
    """
    if not body.startswith(_MAGIC):
        raise errors.bad_request("the body is no protobuf of Kubernetes")
    try:
        envelope = _parse("Unknown", body[len(_MAGIC) :])
        kind = envelope["typeMeta"]
        if kind["kind"] not in _KINDS:
            text = (
                f"this simulated cluster takes a {kind['kind']} as JSON or YAML, and kubectl "
                "create sends protobuf: add --dry-run=client -o yaml | kubectl apply -f -"
            )
            raise errors.ApiError(415, "UnsupportedMediaType", text)
        found = _parse(kind["kind"], envelope["raw"])
    except (DecodeError, KeyError) as broken:
        raise errors.bad_request(f"the protobuf body is broken: {broken}") from None
    return dict(kind) | found


def _parse(name: str, data: bytes) -> Obj:
    message = _classes()[name]()
    message.ParseFromString(data)
    if name == "Unknown":
        found: Obj = {field.name: value for field, value in message.ListFields()}
        return {"raw": b""} | found | {"typeMeta": json_format.MessageToDict(found["typeMeta"])}
    shown: Obj = json_format.MessageToDict(message)
    return shown


@functools.cache
def _classes() -> dict[str, type[Message]]:
    """The classes of the declared messages, which skip all other fields when they are read."""
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name="declared.proto", syntax="proto3")
    for name, fields in (_KINDS | _MESSAGES).items():
        message = file.message_type.add(name=name)
        words = fields.split()
        for field, number, kind in zip(words[::3], words[1::3], words[2::3], strict=True):
            _add_field(message, field, int(number), kind)
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        for name in _KINDS | _MESSAGES
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
