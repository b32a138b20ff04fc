"""Optionals inside a list or a map that functions of ours may be handed.

The CEL runtime of this process does not know how to hand them to Python: it ends the process, or
calls with garbage. So an expression that both puts an optional into a list, a map or a ``dyn``, and
calls a function of ours, is not run. Read off the type-checked expression (cel-spec, checked.proto
and syntax.proto), in which nothing is hidden behind macros any more.

It is decoded here and not by the protobuf library. No package has these messages: the
googleapis-common-protos lack google.api.expr, and cel-spec publishes none. With a schema of our own
the library, which neither controller nor command line has otherwise, takes 1.5 MiB and 0.1 s at the
start, and refuses messages of more than 100 levels: macros nested 24 deep, which the runtime takes.
Decoding here takes below 1 ms an expression, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from dra.cel.declaring import OWN

_REFERENCES, _TYPES, _EXPRESSION = 2, 3, 4
_ID, _SELECT, _CALL, _LIST, _STRUCT, _COMPREHENSION = 2, 5, 6, 7, 8, 9
_ABSTRACT = 14
_OVERLOADS = 3
_TARGET, _FUNCTION, _ARGUMENTS = 1, 2, 3
_VARINT, _FIXED = 0, {1: 8, 5: 4}
"""Wire types, and the bytes that those of fixed size take."""

_TAKING_OPTIONALS = frozenset(
    {
        *("value", "hasValue", "or", "orValue", "optional.of", "optional.ofNonZeroValue"),
        *("_?._", "_[?_]", "_[_]", "_==_", "_!=_"),
    }
)

Fields = dict[int, list[Any]]


def hidden_optional(program: Any) -> str:
    """The function of ours that an optional in a container could reach; empty when there is none.

    ``program`` is compiled with type check.
    """
    (checked,) = _fields(program.serialize())[2]
    fields = _fields(checked)
    own = [name for entry in fields.get(_REFERENCES, ()) for name in _own_functions(entry)]
    if not own:
        return ""
    optionals = {i for i, t in map(_entry, fields.get(_TYPES, ())) if _is_optional(t)}
    (root,) = fields[_EXPRESSION]
    return own[0] if optionals and _hides(_fields(root), optionals) else ""


def _own_functions(entry: bytes) -> Iterator[str]:
    """The functions of ours that one call of the expression may mean."""
    for overload in _fields(_entry(entry)[1]).get(_OVERLOADS, ()):
        name = overload.decode()
        if name.startswith(OWN):
            yield name.removeprefix(OWN).rpartition("_")[0]


def _is_optional(type_: bytes) -> bool:
    return any(_fields(t)[1] == [b"optional_type"] for t in _fields(type_).get(_ABSTRACT, ()))


def _hides(expression: Fields, optionals: set[int]) -> bool:
    """True if an optional of this expression loses its type in it."""
    return any(
        (_id(part) in optionals and not known) or _hides(part, optionals)
        for part, known in _parts(expression, optionals)
    )


def _parts(expression: Fields, optionals: set[int]) -> Iterator[tuple[Fields, bool]]:
    """The expressions in an expression, and whether an optional is known as such there."""
    for select in map(_fields, expression.get(_SELECT, ())):
        yield from _all(select.get(1, ()), known=True)
    for call in map(_fields, expression.get(_CALL, ())):
        (name,) = call[_FUNCTION]
        chooses = name == b"_?_:_" and _id(expression) in optionals
        parts = chain(call.get(_TARGET, ()), call.get(_ARGUMENTS, ()))
        yield from _all(parts, known=chooses or name.decode() in _TAKING_OPTIONALS)
    for items in map(_fields, expression.get(_LIST, ())):
        spread = set(_numbers(items.get(2, ())))
        for index, part in enumerate(items.get(1, ())):
            yield _fields(part), index in spread
    for struct in map(_fields, expression.get(_STRUCT, ())):
        for entry in map(_fields, struct.get(2, ())):
            yield from _all(chain(entry.get(3, ()), entry.get(4, ())), known=5 in entry)  # noqa: PLR2004 - optional_entry
    for loop in map(_fields, expression.get(_COMPREHENSION, ())):
        yield from _all(chain.from_iterable(loop.get(n, ()) for n in (2, 4, 5, 6, 7)), known=True)


def _all(parts: Iterable[bytes], *, known: bool) -> Iterator[tuple[Fields, bool]]:
    return ((_fields(part), known) for part in parts)


def _numbers(packed: Iterable[Any]) -> Iterator[int]:
    """Repeated integers, packed or not."""
    for each in packed:
        position = 0
        while isinstance(each, bytes) and position < len(each):
            number, position = _varint(each, position)
            yield number
        if isinstance(each, int):
            yield each


def _id(expression: Fields) -> int:
    (number,) = expression.get(_ID, [0])
    return int(number)


def _entry(entry: bytes) -> tuple[int, bytes]:
    """Key and value of an entry of a protobuf map."""
    fields = _fields(entry)
    return fields.get(1, [0])[0], fields[2][0]


def _fields(message: bytes) -> Fields:
    """The fields of a protobuf message, by number, undecoded."""
    found: Fields = {}
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        value: int | bytes
        if key & 7 == _VARINT:
            value, position = _varint(message, position)
        else:
            size = _FIXED.get(key & 7)
            if size is None:
                size, position = _varint(message, position)
            value, position = message[position : position + size], position + size
        found.setdefault(key >> 3, []).append(value)
    return found


def _varint(message: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:  # noqa: PLR2004
            return number, position
