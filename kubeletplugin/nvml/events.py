"""XIDs and changes as NVML delivers them: event sets on whole GPUs.

An XID may name an instance. A change does not say what has changed, nor who did it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class InstancesChanged:
    """Notice that instances were made or destroyed, by this program or another."""


@dataclass(frozen=True, slots=True)
class RecoveryChanged:
    """Notice that the driver wants something else to be done about the GPU; it does not say what.

    nvml.h documents the event's data for XIDs only.
    """


Event = Xid | InstancesChanged | RecoveryChanged


class GpuEvents:
    """The XIDs of one GPU and, where it delivers them, the changes named above, from now on.

    For one thread, which closes it once it is ``stale``. Until then NVML is neither shut down nor
    opened anew. A call that hangs here has no part in what is said of the GPU's other calls.
    """

    def __init__(self, session: Session, gpu: str) -> None:
        """Register for the events.

        Raises:
            NotSupportedError: this GPU or driver delivers none.
            NvmlError: the GPU cannot be asked now.
        """
        self._session = session
        self._label = f"{gpu} (events)"
        self._generation = session.generation
        self._set: Any = None
        self._use = ExitStack()
        self._use.enter_context(session.together())
        try:
            self._register(gpu)
        except BaseException:
            self.close()
            raise

    def _register(self, gpu: str) -> None:
        device = self._session.device(gpu)
        supported = self._call(pynvml.nvmlDeviceGetSupportedEventTypes, device)
        if not supported & pynvml.nvmlEventTypeXidCriticalError:
            raise NotSupportedError(
                "nvmlDeviceGetSupportedEventTypes",
                pynvml.NVML_ERROR_NOT_SUPPORTED,
                gpu=gpu,
                detail="the GPU delivers no XID events",
            )
        self._set = self._call(pynvml.nvmlEventSetCreate)
        types = supported & _WANTED
        self._call(pynvml.nvmlDeviceRegisterEvents, device, types, self._set)

    @property
    def stale(self) -> bool:
        """True if this set is to be closed: NVML was initialised anew, or is about to be closed."""
        return (
            self._session.wanted
            or not self._session.is_open
            or self._generation != self._session.generation
        )

    def next(self, seconds: float, ended: Callable[[], bool] = lambda: True) -> Event | None:
        """The next event, or None if there is none in that time.

        It waits again until ``ended`` says so or the set is stale, all in one operation: another
        thread waits, and this one is not woken for each time in which nothing came.

        Raises:
            NvmlError: there will be no more here; GpuLostError if the GPU is lost.
        """
        return self._session.as_one(lambda: self._waited(seconds, ended), gpu=self._label)

    def _waited(self, seconds: float, ended: Callable[[], bool]) -> Event | None:
        while True:
            try:
                data = self._call(pynvml.nvmlEventSetWait_v2, self._set, int(seconds * 1000))
            except NvmlError as error:
                if error.code != pynvml.NVML_ERROR_TIMEOUT or type(error) is not NvmlError:
                    raise
            else:
                break
            if self.stale or ended():
                return None
        if data.eventType == pynvml.nvmlEventMigConfigChange:
            return InstancesChanged()
        if data.eventType == pynvml.nvmlEventTypeGpuRecoveryAction:
            return RecoveryChanged()
        if data.eventType != pynvml.nvmlEventTypeXidCriticalError:
            return None
        return Xid(
            int(data.eventData), _instance(data.gpuInstanceId), _instance(data.computeInstanceId)
        )

    def close(self) -> None:
        """Free the set, if it is one still; errors do not matter. Only once."""
        with self._use:
            if self._set is None or self._generation != self._session.generation:
                return
            try:
                self._call(pynvml.nvmlEventSetFree, self._set)
            except NvmlError:
                return

    def _call(self, function: Any, *arguments: Any) -> Any:
        return self._session.call(function, *arguments, gpu=self._label)


def _instance(identifier: int) -> int | None:
    return None if identifier == _WHOLE_GPU else int(identifier)
