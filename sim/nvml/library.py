"""Latencies of NVML's functions as they were measured on real hardware, by a report of a check.

`python -m kubeletplugin check --create GPU --json FILE` measures how long each call takes; a
simulated machine takes the median of each function. Functions that the report lacks take no time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from api.decoding import decodable
from sim.nvml.cabi import ERROR_STRINGS, RefusedError, Return
from sim.nvml.faults import crash, suffer
from sim.nvml.session import Session
from sim.nvml.state import MachineState

_SUFFIX = re.compile(r"(_v\d+|V|WithFlags)$")


class _Times(msgspec.Struct):
    """Times of a function in milliseconds; what else a report has is left out."""

    median: float


@decodable
class _Report(msgspec.Struct):
    """Report of a check; what else it has is left out."""

    times: dict[str, _Times]


def plain(function: str) -> str:
    """A function's name without the version that ends the names of C functions."""
    return _SUFFIX.sub("", function)


def read_latencies(report: Path) -> dict[str, float]:
    """Seconds by plain name of a function.

    Raises:
        LookupError: the file is no report of a check, or cannot be read.
    """
    try:
        times = msgspec.json.decode(report.read_bytes(), type=_Report).times
    except (OSError, msgspec.MsgspecError) as error:
        raise LookupError(f"{report} is no report of `kubeletplugin check`: {error}") from error
    return {plain(name): each.median / 1000 for name, each in times.items()}


def latency(latencies: Mapping[str, float], function: str) -> float:
    """Seconds that a C function takes."""
    return latencies.get(plain(function), 0.0) if latencies else 0.0


Body = Callable[..., int | None]


@dataclass(frozen=True, slots=True)
class Export:
    """A C function: `body` gets the session and the C arguments, and raises to refuse.

    With `on_handle` the first argument is a handle that says which GPU the call is about.
    """

    name: str
    body: Body
    on_handle: bool
    mutation: bool
    needs_init: bool


EXPORTS: dict[str, Export] = {}


def exported(
    name: str, *, on_handle: bool = True, mutation: bool = False, needs_init: bool = True
) -> Callable[[Body], Body]:
    """Enters a function into the library under its C name."""

    def enter(body: Body) -> Body:
        EXPORTS[name] = Export(name, body, on_handle, mutation, needs_init)
        return body

    return enter


class CFunction:
    """One function of the library, called with C arguments; `restype` is ctypes' and ignored."""

    def __init__(self, session: Session, export: Export) -> None:
        self.restype: Any = None
        self._session = session
        self._export = export

    def __call__(self, *arguments: Any) -> int:
        """Call, with the faults that are due, and return the nvmlReturn_t."""
        session, export = self._session, self._export
        state = session.store.read()
        gpu = self._gpu(arguments, state)
        due = session.faults.due(export.name, gpu)
        if seconds := latency(state.latencies, export.name):
            time.sleep(seconds)
        try:
            done = suffer(session.faults, due)
            if due or seconds:
                state = session.store.read()
            code = int(Return.SUCCESS) if done else self._run(arguments, state, gpu)
        except RefusedError as refused:
            code = refused.code
        session.log.record(
            export.name,
            gpu=gpu[0] if gpu else "",
            code=code,
            mutation=export.mutation,
            wanted=state.record_calls,
        )
        if any(rule.action == "crash-after" for rule in due):
            crash()
        return code

    def _run(
        self, arguments: tuple[Any, ...], state: MachineState, gpu: tuple[str, int] | None
    ) -> int:
        if self._export.needs_init and self._session.references == 0:
            raise RefusedError(Return.UNINITIALIZED)
        if gpu is not None and self._session.is_lost(state, state.gpus[gpu[1]]):
            raise RefusedError(Return.GPU_IS_LOST)
        return self._export.body(self._session, *arguments) or int(Return.SUCCESS)

    def _gpu(self, arguments: tuple[Any, ...], state: MachineState) -> tuple[str, int] | None:
        if not self._export.on_handle or not arguments:
            return None
        try:
            uuid = self._session.target(arguments[0]).gpu
        except RefusedError:
            return None
        return next(((uuid, at) for at, gpu in enumerate(state.gpus) if gpu.uuid == uuid), None)


class SimulatedLibrary:
    """Stand-in for the ctypes.CDLL of libnvidia-ml.so.1."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def end(self) -> None:
        """The process that has it mapped is gone."""
        self._session.end()

    def waits(self) -> int:
        """Number of waits for events that have looked for one."""
        return self._session.waits

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The C function of this name; AttributeError where a real library lacks the symbol."""
        if name == "nvmlErrorString":
            return _ErrorString()
        export = EXPORTS.get(name)
        if export is None:
            raise AttributeError(f"the simulated library has no symbol {name}")
        return CFunction(self._session, export)


class _ErrorString:
    restype: Any = None

    def __call__(self, code: Any) -> bytes:
        known = {int(k): v for k, v in ERROR_STRINGS.items()}
        return known.get(int(getattr(code, "value", code)), "Unknown Error").encode()
