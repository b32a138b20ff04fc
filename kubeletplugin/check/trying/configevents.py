"""NVML's events of MIG configuration changes on one GPU."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pynvml

from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.nvml.session.session import Session

_WAIT_SECONDS = 2.0
_MIG_CONFIG_CHANGE = 0x100  # nvml.h; older bindings lack it


class ConfigEvents:
    """Listens from its making to ``close``; ``refusal`` says why it cannot, empty if it does."""

    def __init__(self, session: Session, gpu: str) -> None:
        self._session = session
        self._gpu = gpu
        self._set: Any = None
        self.refusal = ""
        wanted = _MIG_CONFIG_CHANGE
        try:
            device = session.device(gpu)
            if not self._call(pynvml.nvmlDeviceGetSupportedEventTypes, device) & wanted:
                self.refusal = "not supported"
                return
            self._set = self._call(pynvml.nvmlEventSetCreate)
            self._call(pynvml.nvmlDeviceRegisterEvents, device, wanted, self._set)
        except NvmlError as error:
            self.refusal = str(error)

    def came(self) -> bool:
        """True if a change of the configuration was told since the last question."""
        milliseconds = int(_WAIT_SECONDS * 1000)
        try:
            data = self._call(pynvml.nvmlEventSetWait_v2, self._set, milliseconds)
        except NvmlError:
            return False
        return bool(data.eventType & _MIG_CONFIG_CHANGE)

    def close(self) -> None:
        """Free the event set."""
        if self._set is not None:
            with suppress(NvmlError):
                self._call(pynvml.nvmlEventSetFree, self._set)

    def _call(self, function: Any, *arguments: Any) -> Any:
        return self._session.call(function, *arguments, gpu=f"{self._gpu} (events)")
