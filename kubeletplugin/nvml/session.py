"""The process's one NVML session.

It stays open as long as the process lives: without it, looking up a MIG handle by UUID was seen to
take ten seconds under load.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from kubeletplugin.nvml.errors import translate

T = TypeVar("T")


class Session:
    """NVML, opened once. Thread-safe; every method raises errors of kubeletplugin.nvml.errors."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = False

    @property
    def is_open(self) -> bool:
        """Whether ``open`` has succeeded and ``close`` was not called since."""
        return self._open

    def open(self) -> None:
        """Load the library and initialise it; does nothing when that is done already.

        Raises:
            DriverUnavailableError: no library or no driver; try again later.
        """
        with self._lock:
            if not self._open:
                _translated(pynvml.nvmlInit)
                self._open = True

    def close(self) -> None:
        """Shut the library down; errors of a library that is going anyway do not matter."""
        with self._lock:
            if self._open:
                self._open = False
                try:
                    pynvml.nvmlShutdown()
                except pynvml.NVMLError:
                    return

    def call(self, function: Callable[..., T], *arguments: Any, gpu: str = "") -> T:
        """Call a function of pynvml; ``gpu`` is the UUID to name in an error.

        A library that says UNINITIALIZED although it was initialised (the driver was exchanged
        under it) is initialised once more, and the call repeated.
        """
        try:
            return function(*arguments)
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_UNINITIALIZED or not self._open:
                raise translate(function.__name__, error.value, gpu=gpu) from error
        with self._lock:
            _translated(pynvml.nvmlInit)
        return _translated(function, *arguments, gpu=gpu)

    def device(self, uuid: str) -> Any:
        """The handle of a GPU.

        Raises:
            NotFoundError: this machine has no such GPU.
        """
        return self.call(pynvml.nvmlDeviceGetHandleByUUID, uuid, gpu=uuid)

    def driver_version(self) -> str:
        """Version of the kernel driver: ``570.86.10``."""
        return str(self.call(pynvml.nvmlSystemGetDriverVersion))

    def cuda_version(self) -> str:
        """Newest CUDA version that the driver serves: ``12.8``."""
        version = int(self.call(pynvml.nvmlSystemGetCudaDriverVersion))
        return f"{version // 1000}.{version % 1000 // 10}"


def _translated(function: Callable[..., T], *arguments: Any, gpu: str = "") -> T:
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise translate(function.__name__, error.value, gpu=gpu) from error
