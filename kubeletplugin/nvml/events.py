"""XIDs and changes as NVML delivers them, and the meaning of XIDs for a GPU or a slice.

Event sets are of whole GPUs. An XID, an error number of NVIDIA's kernel driver, may name an
instance; numbers and actions: https://docs.nvidia.com/deploy/xid-errors. A change does not say what
has changed, nor who did it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import pynvml

from kubeletplugin.nvml.errors import NotSupportedError, NvmlError
from kubeletplugin.nvml.session import Session

_WHOLE_GPU = 0xFFFFFFFF
_WANTED = (
    pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventMigConfigChange
    | pynvml.nvmlEventTypeGpuRecoveryAction
)


@dataclass(frozen=True, slots=True)
class Xid:
    """An XID; ``gi_id`` and ``ci_id`` are None if it concerns the whole GPU."""

    number: int
    gi_id: int | None = None
    ci_id: int | None = None


class Changed(Enum):
    """Things of which the driver gives notice; nvml.h documents no data but XIDs'."""

    INSTANCES = auto()
    """They were made or destroyed, by this program or another."""
    RECOVERY = auto()
    """Something else is to be done about the GPU."""


Event = Xid | Changed
_CHANGES = {
    pynvml.nvmlEventMigConfigChange: Changed.INSTANCES,
    pynvml.nvmlEventTypeGpuRecoveryAction: Changed.RECOVERY,
}


class GpuEvents:
    """The XIDs of one GPU and, where it delivers them, the changes named above.

    For one thread, which is registered for them from its first wait on, also between waits, until a
    wait ends without an event. NVML is neither shut down nor opened anew during a wait, which ends
    for that. A call that hangs here has no part in what is said of the GPU's other calls.
    """

    def __init__(self, session: Session, gpu: str) -> None:
        self._session = session
        self._gpu = gpu
        self._label = f"{gpu} (events)"
        self._generation = 0
        self._set: Any = None

    def next(self, seconds: float, ended: Callable[[], bool] = lambda: True) -> Event | None:
        """The next event; None if ``ended`` says so after a wait, or NVML is to be closed.

        A wait takes ``seconds``. All of them are one operation: another thread waits, and this one
        is not woken for each time in which nothing came.

        Raises:
            NotSupportedError: this GPU or driver delivers none.
            NvmlError: none can be waited for now; GpuLostError if the GPU is lost.
        """
        return self._session.as_one(lambda: self._next(seconds, ended), gpu=self._label)

    def _next(self, seconds: float, ended: Callable[[], bool]) -> Event | None:
        if self._set is None or self._generation != self._session.generation:
            self._register()
        try:
            while (data := self._wait(seconds)) is None:
                if self._session.wanted or ended():
                    self._free()
                    return None
        except NvmlError:
            self._free()
            raise
        if data.eventType != pynvml.nvmlEventTypeXidCriticalError:
            return _CHANGES.get(data.eventType)
        return Xid(
            int(data.eventData), _instance(data.gpuInstanceId), _instance(data.computeInstanceId)
        )

    def _wait(self, seconds: float) -> Any:
        """Event that came within ``seconds``; None if nothing did."""
        try:
            return self._call(pynvml.nvmlEventSetWait_v2, self._set, int(seconds * 1000))
        except NvmlError as error:
            if error.code != pynvml.NVML_ERROR_TIMEOUT or type(error) is not NvmlError:
                raise
            return None

    def _register(self) -> None:
        self._set = None
        device = self._session.device(self._gpu)
        supported = self._call(pynvml.nvmlDeviceGetSupportedEventTypes, device)
        if not supported & pynvml.nvmlEventTypeXidCriticalError:
            raise NotSupportedError(
                "nvmlDeviceGetSupportedEventTypes",
                pynvml.NVML_ERROR_NOT_SUPPORTED,
                gpu=self._gpu,
                detail="the GPU delivers no XID events",
            )
        self._set = self._call(pynvml.nvmlEventSetCreate)
        self._generation = self._session.generation
        types = supported & _WANTED
        try:
            self._call(pynvml.nvmlDeviceRegisterEvents, device, types, self._set)
        except NvmlError:
            self._free()
            raise

    def _free(self) -> None:
        registered, self._set = self._set, None
        if registered is not None and self._generation == self._session.generation:
            with suppress(NvmlError):
                self._call(pynvml.nvmlEventSetFree, registered)

    def _call(self, function: Any, *arguments: Any) -> Any:
        return self._session.call(function, *arguments, gpu=self._label)


def _instance(identifier: int) -> int | None:
    return None if identifier == _WHOLE_GPU else int(identifier)


APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Errors of the program that ran, not of the hardware: what NVIDIA's device plugin ignores too."""

HINTS = frozenset({48, 63, 94, 154})
"""Signs that decide nothing by themselves, whatever the driver.

With 48 (uncorrectable memory error) comes 94 if it was contained, so that only its program ended,
or 95; 63 is a row to be remapped at the next reset, with which programs go on and new ones begin;
154 tells that the recovery action changed, also back to none.
"""

RESET_XIDS = frozenset({46, 62, 64, 79, 95, 119, 120, 140, 143, 158, 167, 168, 171, 172, 173})
"""The GPU stopped, cannot be trusted or fell off the bus: only a reset or a reboot helps.

They concern the whole GPU, whichever slice the driver names.
"""


class Scope(Enum):
    """Part of the node that an XID makes unhealthy."""

    NOTHING = auto()
    SLICE = auto()
    GPU = auto()


@dataclass(frozen=True, slots=True)
class XidRules:
    """``ignored`` XIDs say nothing of the hardware; ``every`` ignores all but those in ``fatal``.

    ``fatal`` ones count in any case, :data:`HINTS` only then.
    """

    ignored: frozenset[int] = APPLICATION_XIDS
    fatal: frozenset[int] = frozenset()
    every: bool = False

    def scope(self, xid: int, *, gi_id: int | None, judged: bool = False) -> Scope:
        """Scope of an XID; ``gi_id`` None is the whole GPU.

        ``judged``: the driver says itself what is to be done about the GPU, so that XIDs say
        something of slices alone.
        """
        if xid not in self.fatal:
            if self.every or xid in self.ignored or xid in HINTS:
                return Scope.NOTHING
            if judged:
                return Scope.NOTHING if gi_id is None else Scope.SLICE
        return Scope.GPU if gi_id is None or xid in RESET_XIDS else Scope.SLICE


def read_rules(*, ignore: str = "", fatal: str = "") -> XidRules:
    """Rules from comma-separated lists; ``ignore`` adds to the defaults and may be ``all``.

    Raises:
        ValueError: something is not a number; says what.
    """
    every = ignore.strip().lower() == "all"
    added = () if every else _numbers(ignore)
    return XidRules(APPLICATION_XIDS | frozenset(added), frozenset(_numbers(fatal)), every)


def _numbers(text: str) -> Iterable[int]:
    for part in (p.strip() for p in text.split(",")):
        if part and not part.isdecimal():
            raise ValueError(f"{part!r} is not the number of an XID; write them as: 63,74")
        if part:
            yield int(part)
