"""The NVML library in this process: opened, used by many threads, opened anew, closed.

nvml.h promises nothing of nvmlShutdown while other calls are inside the library, so it is called
only when none of ours is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import pynvml

from kubeletplugin.nvml.calls import AbandonedError, CallPool, UseLock
from kubeletplugin.nvml.errors import (
    DriverUnavailableError,
    HangError,
    NvmlError,
    code_name,
    translate,
)

_log = logging.getLogger(__name__)

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
_SUCCESS = code_name(pynvml.NVML_SUCCESS)
T = TypeVar("T")


class Library:
    """Thread-safe; every method raises errors of kubeletplugin.nvml.errors.

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
        self.seconds = seconds
        self._lock = threading.Lock()
        self._open = False
        self._initialised = False
        self._generation = 0
        self._on_call = on_call
        self._calls = CallPool(seconds)
        self._use = UseLock(lambda: bool(self._calls.inside()))

    @property
    def is_open(self) -> bool:
        """True if ``open`` has succeeded and ``close`` was not called since."""
        return self._open

    @property
    def wanted(self) -> bool:
        """True if it is to be closed or opened anew: who listens for events releases it now."""
        return self._use.wanted

    @property
    def generation(self) -> int:
        """Number of initialisations: handles of an earlier generation are not valid any more."""
        return self._generation

    def open(self) -> None:
        """Load the library and initialise it; does nothing when that is done already.

        Raises:
            DriverUnavailableError: no library or no driver; try again later.
        """
        with self._lock:
            if self._open:
                return
            if self._initialised:
                # An earlier close had to leave it; what hangs there may have come back since.
                self._shut_down(0.0)
            if not self._initialised:
                self._initialise()
            self._open = True

    def close(self, seconds: float | None = None) -> bool:
        """End event waits, let calls finish, and shut the library down; new calls are refused.

        Errors of a library that is going anyway do not matter. What has not come back within
        ``seconds`` (by default a call's deadline) is said in the log, and the library is then left
        as it is, never shut down under a running call: False.
        """
        with self._lock:
            self._open = False
            return not self._initialised or self._shut_down(seconds)

    def reopen(self, seconds: float) -> bool:
        """Shut the library down and initialise it anew; calls begun meanwhile wait.

        False, and nothing was done, if calls that run have not come back within ``seconds``.

        Raises:
            DriverUnavailableError: it could not be initialised again; the session is closed.
        """
        with self._lock:
            if not self._open or self._calls.overdue():
                return False
            with self._use.alone(seconds) as alone:
                if not alone:
                    return False
                self._end()
                self._open = False
                self._initialise()
                self._open = True
        return True

    @contextmanager
    def together(self) -> Iterator[None]:
        """Calls in here see one generation: the session is not opened anew or closed between them.

        Raises:
            DriverUnavailableError: it is closed.
            NvmlError: it is being opened anew, and that lasts.
        """
        nested = self._use.inside
        with self._use.shared(self.seconds) as entered:
            if not entered:
                raise NvmlError(
                    "nvmlInit", pynvml.NVML_ERROR_NOT_READY, detail="NVML is being opened anew"
                )
            if not (nested or self._open):
                raise DriverUnavailableError(
                    "nvmlInit", pynvml.NVML_ERROR_UNINITIALIZED, detail="NVML is closed"
                )
            yield

    def as_one(self, work: Callable[[], T], *, gpu: str) -> T:
        """The result of ``work``, whose calls for that GPU share one thread and one generation.

        Raises:
            NvmlError: as from each of its calls; HangError ends it.
        """
        if self._calls.in_operation:
            return work()
        began = time.monotonic()

        def adopted() -> T:
            with self._use.adopted():
                return work()

        with self.together():
            try:
                return self._calls.together(adopted, gpu=gpu)
            except HangError as error:
                self._on_call(error.operation, "HANG", time.monotonic() - began)
                raise

    def hangs(self, gpu: str) -> str:
        """The call for a GPU that has not come back in time, and since when; empty if none."""
        return self._calls.hangs(gpu)

    def _initialise(self) -> None:
        self._translated(pynvml.nvmlInit)
        self._initialised = True
        self._generation += 1

    def _shut_down(self, seconds: float | None) -> bool:
        seconds = self.seconds if seconds is None else seconds
        with self._use.alone(seconds) as alone:
            if alone:
                self._end()
                return True
        _log.error(
            "NVML is left open: calls have not come back within %g s: %s",
            seconds,
            "; ".join(self._calls.inside()) or "a wait for events, or several calls that are one",
        )
        return False

    def _end(self) -> None:
        self._initialised = False
        try:
            self._run(pynvml.nvmlShutdown)
        except (pynvml.NVMLError, HangError) as error:
            _log.warning("nvmlShutdown: %s", error)

    def _run(self, function: Callable[..., T], *arguments: Any, gpu: str = "") -> T:
        name = function.__name__
        factor = _CHANGE_FACTOR if name in _CHANGES else 1.0
        began, code = time.monotonic(), _SUCCESS
        try:
            return self._calls.run(name, partial(function, *arguments), gpu=gpu, factor=factor)
        except pynvml.NVMLError as error:
            code = code_name(error.value)
            raise
        except HangError:
            code = "HANG"
            raise
        except AbandonedError:
            code = ""  # whoever waited has told
            raise
        finally:
            if code:
                self._on_call(name, code, time.monotonic() - began)

    def _translated(self, function: Callable[..., T], *arguments: Any, gpu: str = "") -> T:
        try:
            return self._run(function, *arguments, gpu=gpu)
        except pynvml.NVMLError as error:
            raise translate(function.__name__, error.value, gpu=gpu) from error
