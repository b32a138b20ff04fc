"""NVML's events, XIDs and changes, and the meaning of XIDs for a GPU or a slice.

Events are delivered for whole GPUs. An XID is an error number of NVIDIA's kernel driver, and may
name an instance; numbers and actions: https://docs.nvidia.com/deploy/xid-errors. The event of a
change does not name the instance that has changed, nor the program that changed it.
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
    """Changes of which the driver gives notice; nvml.h documents data of XID events only."""

    INSTANCES = auto()
    """Instances were made or destroyed, by this program or another."""
    RECOVERY = auto()
    """The driver's recovery action for the GPU has changed."""


Event = Xid | Changed
_CHANGES = {
    pynvml.nvmlEventMigConfigChange: Changed.INSTANCES,
    pynvml.nvmlEventTypeGpuRecoveryAction: Changed.RECOVERY,
}


class GpuEvents:
    """Events of one GPU: its XIDs and, where the driver delivers them, its changes.

    To be used by one thread. Events are collected from the first wait on, also between waits, until
    a wait ends without an event. A wait ends when NVML is to be shut down or opened anew. Calls
    made here run under a name of their own, so that a hanging one does not block the GPU's others.
    """

    def __init__(self, session: Session, gpu: str) -> None:
        self._session = session
        self._gpu = gpu
        self._label = f"{gpu} (events)"
        self._generation = 0
        self._set: Any = None

    def next(self, seconds: float, ended: Callable[[], bool] = lambda: True) -> Event | None:
        """Wait for the next event, in waits of ``seconds`` each.

        Returns None after a wait without an event if ``ended`` returns True or NVML is to be
        closed; also for an event of an unknown kind. All waits are one operation in another thread,
        so that this thread is not woken after each of them.

        Raises:
            NotSupportedError: this GPU or driver delivers no events.
            GpuLostError: the GPU is lost.
            NvmlError: events cannot be waited for now.
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
        """NVML's data of the event that came within ``seconds``; None if none came."""
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
        self._set = self._session.event_sets[self._label] = self._call(pynvml.nvmlEventSetCreate)
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
            self._session.event_sets.pop(self._label, None)
            with suppress(NvmlError):
                self._call(pynvml.nvmlEventSetFree, registered)

    def _call(self, function: Any, *arguments: Any) -> Any:
        return self._session.call(function, *arguments, gpu=self._label)


def _instance(identifier: int) -> int | None:
    return None if identifier == _WHOLE_GPU else int(identifier)


APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs for errors of a program, not of the hardware; NVIDIA's device plugin ignores the same."""

HINTS = frozenset({48, 63, 94, 154})
"""XIDs that alone make nothing unhealthy, with any driver.

48: an uncorrectable memory error; 94 or 95 follows. 94: that error was contained, so that only its
program ended. 63: a memory row is remapped at the next reset; until then the GPU can be used.
154: the recovery action has changed, perhaps back to none.
"""

RESET_XIDS = frozenset({46, 62, 64, 79, 95, 119, 120, 140, 143, 158, 167, 168, 171, 172, 173})
"""XIDs after which only a reset or a reboot helps: the GPU stopped, cannot be trusted or is lost.

They concern the whole GPU, also where the driver names a slice.
"""


class Scope(Enum):
    """Part of the node that an XID makes unhealthy."""

    NOTHING = auto()
    SLICE = auto()
    GPU = auto()


@dataclass(frozen=True, slots=True)
class XidRules:
    """Rules by which an XID makes a GPU or slice unhealthy.

    ``ignored``: XIDs that do not count. ``every``: no XID counts but those in ``fatal``.
    ``fatal``: XIDs that always count, even if they are ignored or in :data:`HINTS`.
    """

    ignored: frozenset[int] = APPLICATION_XIDS
    fatal: frozenset[int] = frozenset()
    every: bool = False

    def scope(self, xid: int, *, gi_id: int | None, judged: bool = False) -> Scope:
        """Scope of an XID.

        ``gi_id``: GPU instance that the XID names; None: the whole GPU. ``judged``: the driver
        reports a recovery action for the GPU, so that XIDs of whole GPUs count only if ``fatal``.
        """
        if xid not in self.fatal:
            if self.every or xid in self.ignored or xid in HINTS:
                return Scope.NOTHING
            if judged:
                return Scope.NOTHING if gi_id is None else Scope.SLICE
        return Scope.GPU if gi_id is None or xid in RESET_XIDS else Scope.SLICE


def read_rules(*, ignore: str = "", fatal: str = "") -> XidRules:
    """Rules from comma-separated lists of XIDs.

    ``ignore``: added to the defaults; ``all`` ignores every XID. ``fatal``: XIDs that always count.

    Raises:
        ValueError: an entry is not a number; names the entry.
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
