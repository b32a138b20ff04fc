"""CEL selectors of classes and requests, evaluated against virtual devices (KEP-4381).

A selector holds, does not hold, or fails at run time (``device.attributes["x"].y`` where there is
no ``y``); a failure is kept as a reason, because Kubernetes refuses to schedule on it.

Nothing here bounds an expression: it may take seconds and gigabytes, and an optional in a
map that one of our functions is called with ends the process. Expressions of tenants are evaluated
in ``dra.sandbox`` therefore. Calls of functions that are not CEL's own leak a few hundred bytes in
the runtime.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from cel_expr_python import cel

from dra.cel import library
from dra.cel.data import DeviceData, View, of_gpu
from dra.cel.library import REPLACED
from dra.cel.questions import Answer, Job, Selected, SelectorError, shortened
from dra.common.cache import BoundedCache

_LIBRARIES = {"strings": 2, "lists": 2, "sets": 0, "two-var-comprehensions": 0, "bindings": 0}
"""Extensions of the runtime, in the versions of Kubernetes 1.36; ``optional`` has only one version.
"""

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

_OPTIONAL = re.compile(r"\*opaque\*|returned a result with an exception set")
_LACKING = re.compile(
    r"undeclared reference to '("
    r"is(?:IP|CIDR|URL|Sorted)|ip|cidr|url|format|unwrap(?:Opt)?|exists_one|includes|sum|min|max"
    r"|(?:net|kubernetes)\.\w+)'"
    r"|overload for '(indexOf|lastIndexOf)' applied to '\((?:list|dyn)"
    r"|cel\.@(mapInsert)"
)
"""Names that Kubernetes' CEL has and the runtime has not, as the runtime's messages tell them."""

_WORDS = {
    "mapInsert": "transformMap, transformMapEntry",
    "exists_one": "exists_one of two variables",
    "indexOf": "indexOf of lists",
    "lastIndexOf": "lastIndexOf of lists",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a selector for a device; ``error``: why it failed at run time, or empty."""

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
            functions=library.functions(),
            config=cel.NewEnvConfigFromYaml(_CONFIG),
        )
        self._compiled: BoundedCache[str, _Compiled] = BoundedCache(_MOST_COMPILED)

    def check(self, expression: str) -> None:
        """Raise SelectorError, with the place, unless the expression compiles to a boolean."""
        error = self._program(expression).error
        if error:
            raise SelectorError(error)

    def evaluate(self, expression: str, device: DeviceData) -> Verdict:
        """The verdict of ``expression`` on ``device``.

        Raises:
            SelectorError: the expression does not compile.
        """
        self.check(expression)
        return _run(self._program(expression), device)

    def answer(self, job: Job) -> Answer:
        """Do a job, without bounds on time and memory.

        Raises:
            SelectorError: an expression of a job with devices does not compile.
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
        try:
            program = self._env.compile(expression)
            returned = program.return_type()
        except RuntimeError as error:
            return _Compiled(error=_readable(str(error)))
        if returned not in (cel.Type.BOOL, cel.Type.DYN):
            return _Compiled(error=f"must evaluate to a boolean, not to {returned.name()}")
        return _Compiled(program=program, view=View.of(expression))


def _run(compiled: _Compiled, device: DeviceData) -> Verdict:
    data = {"device": compiled.view.complete(device)}
    try:
        result = compiled.program.eval(data=data)
    except (RuntimeError, ValueError) as error:  # ValueError: lists.range(-1)
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

    The runtime writes ``INVALID_ARGUMENT: ERROR: <input>:1:14: ... | source | ..^
    [INVALID_ARGUMENT]``.
    """
    lines = [line for line in message.splitlines() if not line.lstrip().startswith("|")]
    text = "; ".join(line.strip() for line in lines)
    code, separator, rest = text.partition(": ")
    if separator and code.isupper():
        text = rest.removesuffix(f" [{code}]").removesuffix(f"[{code}]")
    text = text.replace("ERROR: <input>:", "").strip("; ")
    if _OPTIONAL.search(text):
        text += (
            "; an optional in a map or made dyn, beside such a function, is not "
            "supported by this driver, though Kubernetes has it; take the values out of optionals, "
            "with orValue() or value(), before they go in"
        )
    if lacking := _LACKING.search(text):
        name = next(filter(None, lacking.groups()))
        text += (
            f"; this driver has no {_WORDS.get(name, name)}, which kube-scheduler has where it "
            "allocates: write the selector without it"
        )
    return text
