"""CEL selectors of classes and requests, evaluated against virtual devices (KEP-4381).

A selector holds, does not hold, or fails at run time (``device.attributes["x"].y`` where there is
no ``y``); a failure is kept as a reason, because Kubernetes refuses to schedule on it. Results are
remembered per expression and kind of device, not per GPU, unless the expression looks at what
tells one GPU from another. Calls of functions that are not CEL's own leak a few hundred bytes in
the runtime, which the memory bounds too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings

from dra.selectors.cache import BoundedCache
from dra.selectors.celdata import DeviceData, View
from dra.selectors.celfunctions import functions


class SelectorError(ValueError):
    """An expression that does not compile."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a selector selects a device; ``error`` says why it could not be told."""

    selected: bool
    error: str = ""


_BLIND = View(per_gpu=False, domains=frozenset())


@dataclass(frozen=True, slots=True)
class _Compiled:
    program: Any = None
    error: str = ""
    view: View = _BLIND


class Selectors:
    """Compiles and evaluates selectors. Not thread-safe."""

    def __init__(self, *, expressions: int = 2048, verdicts: int = 200_000) -> None:
        self._env = cel.NewEnv(
            variables={"device": cel.Type.Map(cel.Type.STRING, cel.Type.DYN)},
            functions=functions(),
            extensions=[
                ext_optional.ExtOptional(),
                ext_strings.ExtStrings(),
                ext_bindings.ExtBindings(),
            ],
        )
        self._compiled: BoundedCache[str, _Compiled] = BoundedCache(expressions)
        self._verdicts: BoundedCache[tuple[object, ...], Verdict] = BoundedCache(verdicts)

    def check(self, expression: str) -> None:
        """Raise SelectorError, with the place, unless the expression compiles to a boolean."""
        error = self._program(expression).error
        if error:
            raise SelectorError(error)

    def tells_gpus_apart(self, expression: str) -> bool:
        """Whether its result may differ between GPUs of one kind."""
        return self._program(expression).view.per_gpu

    def evaluate(self, expression: str, device: DeviceData) -> Verdict:
        """Whether ``expression`` selects ``device``.

        Raises:
            SelectorError: the expression does not compile.
        """
        compiled = self._program(expression)
        if compiled.error:
            raise SelectorError(compiled.error)
        identity = device.identity if compiled.view.per_gpu else ()
        return self._verdicts.get(
            (expression, device.kind, identity), lambda: _run(compiled, device)
        )

    def _program(self, expression: str) -> _Compiled:
        return self._compiled.get(expression, lambda: self._compile(expression))

    def _compile(self, expression: str) -> _Compiled:
        try:
            program = self._env.compile(expression)
        except RuntimeError as error:
            return _Compiled(error=_readable(str(error)))
        returned = program.return_type()
        if returned not in (cel.Type.BOOL, cel.Type.DYN):
            return _Compiled(error=f"must evaluate to a boolean, not to {returned.name()}")
        return _Compiled(program=program, view=View.of(expression))


def _run(compiled: _Compiled, device: DeviceData) -> Verdict:
    data = {"device": compiled.view.complete(device.value)}
    try:
        result = compiled.program.eval(data=data)
    except RuntimeError as error:
        return Verdict(selected=False, error=_readable(str(error)))
    if result.type() == cel.Type.ERROR:
        return Verdict(selected=False, error=_readable(str(result.value())))
    value = result.value()
    if not isinstance(value, bool):
        return Verdict(selected=False, error="evaluated to something that is no boolean")
    return Verdict(selected=value)


def _readable(message: str) -> str:
    """The runtime's message in one line: ``1:14: undeclared reference to 'foo'``.

    It writes ``INVALID_ARGUMENT: ERROR: <input>:1:14: ... | source | ..^ [INVALID_ARGUMENT]``.
    """
    lines = [line for line in message.splitlines() if not line.lstrip().startswith("|")]
    text = "; ".join(line.strip() for line in lines)
    code, separator, rest = text.partition(": ")
    if separator and code.isupper():
        text = rest.removesuffix(f" [{code}]").removesuffix(f"[{code}]")
    return text.replace("ERROR: <input>:", "").strip("; ")
