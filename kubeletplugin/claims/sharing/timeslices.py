"""Length of the turns that processes get on a whole GPU, set by ``nvidia-smi compute-policy``.

NVML has no function for it (nvml.h knows time slices of vGPUs only); NVIDIA's device plugin and DRA
driver call the same program (``nvlib.go:setTimeSlice`` of the latter). The driver keeps the length
until it is set again, loaded anew, or the GPU is reset.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from kubeletplugin.errors import DeviceError, HardwareError
from kubeletplugin.host.driverfiles import DriverFiles

DEFAULT: Final = "Default"
_NUMBERS: Final = {DEFAULT: 0, "Short": 1, "Medium": 2, "Long": 3}
"""As ``nvidia-smi compute-policy --help`` prints them."""
_PROGRAM: Final = "nvidia-smi"
_SHOWN: Final = 200
_END_SECONDS: Final = 1.0
SECONDS = 10.0
"""Deadline of one call, during which the GPU's lock is held."""


class RefusedError(HardwareError):
    """The driver does not take the length for this GPU; carries its words."""


class TimeSlices:
    """Sets lengths, with the program among the driver's ``files``. Thread-safe."""

    def __init__(self, files: Callable[[], DriverFiles]) -> None:
        self._files = files
        self._hanging: list[subprocess.Popen[bytes]] = []

    def check(self) -> None:
        """Refuse where nothing could be set.

        Raises:
            DeviceError: says what the node lacks.
        """
        self._program()

    def set(self, gpu: str, interval: str) -> None:
        """Set the length of turns on the GPU of this UUID; ``interval`` is a word of the API.

        Raises:
            DeviceError: there is no program for it.
            RefusedError: the driver refuses.
            HardwareError: it does not answer.
        """
        number = str(_NUMBERS[interval])
        command = [self._program(), "compute-policy", "-i", gpu, "--set-timeslice", number]
        try:
            process = subprocess.Popen(  # noqa: S603 - the driver's own program
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise DeviceError(f"cannot run {command[0]}: {error.strerror or error}") from error
        try:
            said, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired as error:
            self._give_up(process)
            raise HardwareError(
                f"{command[0]} did not set time slice {interval} on GPU {gpu} within "
                f"{SECONDS:g} s; look at the GPU with nvidia-smi and dmesg",
                passing=True,
            ) from error
        if process.returncode != 0:
            words = " ".join(said.decode(errors="replace").split())[:_SHOWN]
            raise RefusedError(
                f"the driver refuses time slice {interval} on GPU {gpu} "
                f"({_PROGRAM} ended with {process.returncode}: {words or 'no words'}); choose "
                "sharing.strategy None, or a GPU that supports time slices"
            )

    def _give_up(self, process: subprocess.Popen[bytes]) -> None:
        """End a process, and wait no longer than is usual: in the kernel it may hang for ever."""
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_END_SECONDS)
        if process.stdout is not None:
            process.stdout.close()
        self._hanging = [p for p in (*self._hanging, process) if p.poll() is None]

    def _program(self) -> str:
        files = self._files()
        path = files.programs.get(_PROGRAM)
        if path is None:
            raise DeviceError(
                f"time slices are set by {_PROGRAM}, which is not found below {files.root}; "
                "install it with the driver, or choose sharing.strategy None"
            )
        return str(files.root / path.lstrip("/"))
