"""The process's one NVML session.

It stays open as long as the process lives: without it, looking up a MIG handle by UUID was seen to
take ten seconds under load.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from kubeletplugin.nvml.calls import CallPool
from kubeletplugin.nvml.errors import (
    GpuLostError,
    HangError,
    NotFoundError,
    code_name,
    translate,
)

# Creating and destroying take about a second, and more on big GPUs under load.
_CHANGES = frozenset(
    {
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlGpuInstanceDestroy",
        "nvmlComputeInstanceDestroy",
        "nvmlDeviceSetMigMode",
        "nvmlInit",
    }
)
_CHANGE_FACTOR = 6.0
T = TypeVar("T")


class Session:
    """NVML, opened once. Thread-safe; every method raises errors of kubeletplugin.nvml.errors.

    Every call has a deadline: ``seconds``, six times that for those that change something. While
    one hangs, further calls for the same GPU fail at once, and those for others do not notice.
    ``on_call`` hears of each: the function's name, the code's name or HANG, and how long it took.
    """

    def __init__(
        self,
        *,
        seconds: float = 10.0,
        on_call: Callable[[str, str, float], None] = lambda _name, _code, _seconds: None,
    ) -> None:
        self._lock = threading.Lock()
        self._open = False
        self._generation = 0
        self.seconds = seconds
        self._on_call = on_call
        self._calls = CallPool(seconds)

    @property
    def is_open(self) -> bool:
        """Whether ``open`` has succeeded and ``close`` was not called since."""
        return self._open

    @property
    def generation(self) -> int:
        """How often the library was initialised: what it gave out before is not valid any more."""
        return self._generation

    def open(self) -> None:
        """Load the library and initialise it; does nothing when that is done already.

        Raises:
            DriverUnavailableError: no library or no driver; try again later.
        """
        with self._lock:
            if not self._open:
                self._translated(pynvml.nvmlInit)
                self._open = True
                self._generation += 1

    def close(self) -> None:
        """Shut the library down; errors of a library that is going anyway do not matter."""
        with self._lock:
            if self._open:
                self._open = False
                try:
                    self._run(pynvml.nvmlShutdown)
                except (pynvml.NVMLError, HangError):
                    return

    def hangs(self, gpu: str) -> str:
        """Which call for a GPU has not come back in its time and since when; empty if none."""
        return self._calls.hangs(gpu)

    def call(self, function: Callable[..., T], *arguments: Any, gpu: str = "") -> T:
        """Call a function of pynvml; ``gpu`` is the UUID to name in an error.

        A library that says UNINITIALIZED although it was initialised (the driver was exchanged
        under it) is initialised once more, and the call repeated.
        """
        try:
            return self._run(function, *arguments, gpu=gpu)
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_UNINITIALIZED or not self._open:
                raise translate(function.__name__, error.value, gpu=gpu) from error
        with self._lock:
            self._translated(pynvml.nvmlInit)
            self._generation += 1
        return self._translated(function, *arguments, gpu=gpu)

    def device(self, uuid: str) -> Any:
        """The handle of a GPU.

        Raises:
            GpuLostError: this machine has no such GPU now.
        """
        try:
            return self.call(pynvml.nvmlDeviceGetHandleByUUID, uuid, gpu=uuid)
        except NotFoundError as error:
            # Not to be taken for an instance that is not found, and so is gone for good.
            raise GpuLostError(error.operation, error.code, gpu=uuid) from error

    def driver_version(self) -> str:
        """Version of the kernel driver: ``570.86.10``."""
        return str(self.call(pynvml.nvmlSystemGetDriverVersion))

    def cuda_version(self) -> str:
        """Newest CUDA version that the driver serves: ``12.8``."""
        version = int(self.call(pynvml.nvmlSystemGetCudaDriverVersion))
        return f"{version // 1000}.{version % 1000 // 10}"

    def _run(self, function: Callable[..., T], *arguments: Any, gpu: str = "") -> T:
        name = function.__name__
        factor = _CHANGE_FACTOR if name in _CHANGES else 1.0
        began, code = time.monotonic(), code_name(pynvml.NVML_SUCCESS)
        try:
            return self._calls.run(name, lambda: function(*arguments), gpu=gpu, factor=factor)
        except pynvml.NVMLError as error:
            code = code_name(error.value)
            raise
        except HangError:
            code = "HANG"
            raise
        finally:
            self._on_call(name, code, time.monotonic() - began)

    def _translated(self, function: Callable[..., T], *arguments: Any, gpu: str = "") -> T:
        try:
            return self._run(function, *arguments, gpu=gpu)
        except pynvml.NVMLError as error:
            raise translate(function.__name__, error.value, gpu=gpu) from error
