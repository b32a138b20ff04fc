"""CEL selectors of classes and requests, evaluated against virtual devices (KEP-4381).

A selector holds, does not hold, or fails at run time (``device.attributes["x"].y`` where there is
no ``y``); a failure is kept as a reason, because Kubernetes refuses to schedule on it.

An expression may take seconds and gigabytes, and nothing here bounds it: whoever evaluates what
others wrote does it in ``dra.sandbox``. Calls of functions that are not CEL's own leak a few
hundred bytes in the runtime.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from cel_expr_python import cel

from dra.cel import formats, library
from dra.cel.data import DeviceData, View, of_gpu
from dra.cel.library import OWN, REPLACED
from dra.cel.questions import Answer, Job, Selected, SelectorError, shortened
from dra.cel.spelling import respelt
from dra.common.cache import BoundedCache

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


_LIBRARIES = {"strings": 2, "lists": 2, "sets": 0, "two-var-comprehensions": 0, "bindings": 0}
"""Extensions of the runtime, in the versions of Kubernetes 1.36; ``optional`` has but one."""

_CONFIG = "\n".join(
    [
        "stdlib:",
        "  exclude_functions:",
        *(f'  - name: "{name}"' for name in REPLACED),
        "extensions:",
        "- name: optional",
        *(f"- name: {name}\n  version: {version}" for name, version in _LIBRARIES.items()),
    ]
)

_LONGEST = 500
"""Upper bound on the characters of an error, which may quote a value of any length."""

_TYPE_NAME = re.compile(r"undeclared reference to '(?:net|kubernetes)\.\w+'")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Answer of a selector about a device; ``error`` says why it could not be told."""

    selected: bool
    error: str = ""


_BLIND = View(per_gpu=False, domains=frozenset())


@dataclass(frozen=True, slots=True)
class _Compiled:
    program: Any = None
    error: str = ""
    view: View = _BLIND


_MOST_COMPILED = 2048


class Selectors:
    """Compiles and evaluates selectors. Not thread-safe."""

    def __init__(self) -> None:
        self._env = cel.NewEnv(
            variables={"device": cel.Type.Map(cel.Type.STRING, cel.Type.DYN)},
            functions=[*library.functions(), *formats.functions()],
            config=cel.NewEnvConfigFromYaml(_CONFIG),
        )
        self._compiled: BoundedCache[str, _Compiled] = BoundedCache(_MOST_COMPILED)

    def check(self, expression: str) -> None:
        """Raise SelectorError, with the place, unless the expression compiles to a boolean."""
        error = self._program(expression).error
        if error:
            raise SelectorError(error)

    def evaluate(self, expression: str, device: DeviceData) -> Verdict:
        """True if ``expression`` selects ``device``.

        Raises:
            SelectorError: the expression does not compile.
        """
        self.check(expression)
        return _run(self._program(expression), device)

    def answer(self, job: Job) -> Answer:
        """Do a job, whatever it takes.

        Raises:
            SelectorError: an expression does not compile, and not that is the question.
        """
        if not job.devices:
            (expression,) = job.expressions
            compiled = self._program(expression)
            return Answer(error=compiled.error[:_LONGEST], per_gpu=compiled.view.per_gpu)
        groups = [[of_gpu(device, gpu) for device in job.devices] for gpu in job.gpus]
        return Answer(
            selected=tuple(self._select(job.expressions, g) for g in groups or [[*job.devices]])
        )

    def _select(self, expressions: tuple[str, ...], devices: list[DeviceData]) -> Selected:
        selected: list[int] = []
        failure = ""
        for index, device in enumerate(devices):
            verdict = Verdict(selected=True)
            for expression in expressions:
                verdict = self.evaluate(expression, device)
                if verdict.error:
                    error = verdict.error[:_LONGEST]
                    failure = failure or f"{error} (in {shortened(expression)})"
                if not verdict.selected:
                    break
            if verdict.selected:
                selected.append(index)
        return Selected(tuple(selected), failure)

    def _program(self, expression: str) -> _Compiled:
        return self._compiled.get(expression, lambda: self._compile(expression))

    def _compile(self, expression: str) -> _Compiled:
        spelling = respelt(expression)
        try:
            program = self._env.compile(spelling.text)
            returned = program.return_type()
        except RuntimeError as error:
            return _Compiled(error=_readable(spelling.original(str(error))))
        if function := hidden_optional(program):
            name = spelling.original(function)
            return _Compiled(
                error=f"an optional in a list, in a map or made dyn, beside function {name}(), "
                "is not supported by this driver, though Kubernetes has it; take the values out "
                "of optionals, with orValue() or value(), before they go in"
            )
        if returned not in (cel.Type.BOOL, cel.Type.DYN):
            return _Compiled(error=f"must evaluate to a boolean, not to {returned.name()}")
        return _Compiled(program=program, view=View.of(expression))


def _run(compiled: _Compiled, device: DeviceData) -> Verdict:
    data = {"device": compiled.view.complete(device)}
    try:
        result = compiled.program.eval(data=data)
    except RuntimeError as error:
        return Verdict(selected=False, error=_readable(str(error)))
    try:
        value = result.value()
    except TypeError:  # an optional, which has no form in Python, passes for an error
        value = None
    if isinstance(value, bool):
        return Verdict(selected=value)
    if value is not None and result.type() == cel.Type.ERROR:
        return Verdict(selected=False, error=_readable(str(value)))
    return Verdict(selected=False, error="evaluated to something that is no boolean")


def _readable(message: str) -> str:
    """The runtime's message in one line: ``1:14: undeclared reference to 'foo'``.

    It writes ``INVALID_ARGUMENT: ERROR: <input>:1:14: ... | source | ..^ [INVALID_ARGUMENT]``.
    """
    lines = [line for line in message.splitlines() if not line.lstrip().startswith("|")]
    text = "; ".join(line.strip() for line in lines)
    code, separator, rest = text.partition(": ")
    if separator and code.isupper():
        text = rest.removesuffix(f" [{code}]").removesuffix(f"[{code}]")
    text = text.replace("ERROR: <input>:", "").strip("; ")
    if _TYPE_NAME.search(text):
        text += (
            "; this driver's CEL has no names for types of Kubernetes, leave the test of type out"
        )
    return text
