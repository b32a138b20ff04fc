"""Sharing of devices among the processes of a claim: set at Prepare, put back at Unprepare."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from cdi.spec import Edits
from dra.claims.sharing import MPS, OFFERED, TIME_SLICING
from dra.kube.errors import KubeError
from kubeletplugin.claims.sharing.containers import ContainerCheck
from kubeletplugin.claims.sharing.mps import MpsDaemons
from kubeletplugin.common import Common
from kubeletplugin.errors import DeviceError, HardwareError, PluginError
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.host.driverfiles import DriverFiles
from kubeletplugin.journal.entries import Entry, EntryKey, State
from kubeletplugin.telemetry.observer import device
from kubeletplugin.times import TIME_SLICE_END_SECONDS, TIME_SLICE_SECONDS

DEFAULT: Final = "Default"
_NUMBERS: Final = {DEFAULT: 0, "Short": 1, "Medium": 2, "Long": 3}
"""Numbers of the time slices, as ``nvidia-smi compute-policy --help`` prints them."""
_PROGRAM: Final = "nvidia-smi"
_SHOWN: Final = 200


class RefusedError(HardwareError):
    """The driver refuses the time slice for this GPU; the message has its words."""


class TimeSlices:
    """Setter of the time slice of processes on a whole GPU, by ``nvidia-smi compute-policy``.

    NVML has no function for it (nvml.h has time slices of vGPUs only); NVIDIA's device plugin and
    DRA driver call the same program (``nvlib.go:setTimeSlice`` of the latter). The time slice stays
    until it is set again, the driver is reloaded, or the GPU is reset. ``files``: returns the
    driver's files, the program among them. Thread-safe.
    """

    def __init__(self, files: Callable[[], DriverFiles]) -> None:
        self._files = files
        self._hanging: list[subprocess.Popen[bytes]] = []

    def check(self) -> None:
        """Check that time slices can be set.

        Raises:
            DeviceError: they cannot; the message says what the node lacks.
        """
        self._program()

    def set(self, gpu: str, interval: str) -> None:
        """Set the time slice of the GPU with this UUID; ``interval``: a word of the API.

        Raises:
            DeviceError: the program is not there, or cannot be run.
            RefusedError: the driver refuses.
            HardwareError: the program does not end in time.
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
            said, _ = process.communicate(timeout=TIME_SLICE_SECONDS)
        except subprocess.TimeoutExpired as error:
            self._give_up(process)
            raise HardwareError(
                f"{command[0]} did not set time slice {interval} on GPU {gpu} within "
                f"{TIME_SLICE_SECONDS:g} s; look at the GPU with nvidia-smi and dmesg",
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
        """Kill a process and wait for its end, not for ever: it may hang in the kernel."""
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=TIME_SLICE_END_SECONDS)
        if process.stdout is not None:
            process.stdout.close()
        self._hanging = [p for p in (*self._hanging, process) if p.poll() is None]

    def _program(self) -> str:
        files = self._files()
        path = files.programs.get(_PROGRAM)
        if path is None:
            raise DeviceError(
                f"time slices are set by {_PROGRAM}, {files.searched}, or choose sharing.strategy "
                "None"
            )
        return str(files.seen(path))


_log = logging.getLogger(__name__)
_CLIENTS = "; restart the containers that use it once it does"


class DeviceSharing:
    """Sharing that journal entries ask for: time slices, MPS. Thread-safe.

    A time slice is a change of the GPU, whose lock the caller holds. The caller makes sure that
    nothing else works on the claim.
    """

    def __init__(
        self, common: Common, hardware: Hardware, files: Callable[[], DriverFiles]
    ) -> None:
        self._journal = common.journal
        self.time_slices = TimeSlices(files)
        self.daemons = MpsDaemons(common, hardware, files)
        self.containers = ContainerCheck(common)
        self._boot_id = hardware.boot_id

    def offers(self) -> tuple[str, ...]:
        """Strategies that this node can serve now, named as capabilities of the MigNode."""
        checks = {TIME_SLICING: self.time_slices.check, MPS: self.daemons.check}
        return tuple(OFFERED[strategy] for strategy, check in checks.items() if _passes(check))

    def check(self, entry: Entry) -> None:
        """Check that this node can set up the sharing of an entry.

        Raises:
            PluginError: it cannot; the message says what is missing.
        """
        if entry.interval:
            self.time_slices.check()
        if entry.mps is not None:
            self.daemons.check()

    def edits(self, entries: Sequence[Entry]) -> dict[EntryKey, tuple[Edits, ...]]:
        """Edits of a container for each shared device of a claim, by key of its entry.

        ``entries``: all entries of the claim.

        Raises:
            PluginError: a device cannot be shared as configured.
        """
        return {e.key: (self.daemons.edits(e),) for e in entries if e.mps is not None}

    def keep(self, entries: Iterable[Entry]) -> bool:
        """Start again MPS daemons of prepared ``entries`` that do not run. Call it without a lock.

        The note of an entry says why its daemon does not serve. Returns True if a note was changed.

        Raises:
            PluginError: the journal cannot be written.
        """
        served = [e for e in entries if e.mps is not None and e.state is State.PREPARED]
        changed = {self._keep(entry) for entry in served}
        return True in changed

    def _keep(self, entry: Entry) -> bool:
        try:
            why = self.daemons.keep(entry)
        except PluginError as error:
            why = str(error)
        note = f"the claim's MPS daemon does not serve: {why}{_CLIENTS}" if why else ""
        if note == entry.note:
            return False
        if note:
            _log.warning("MPS daemon does not serve", extra=device(entry, error=why))
        else:
            _log.info("MPS daemon serves again", extra=device(entry))
        return self._journal.alter(entry, replace(entry, note=note))

    def sweep(self) -> None:
        """Remove daemons and files of claims that are not in the journal. It asks the API server.

        While entries may be missing from the journal, it removes nothing. Failures are logged.
        """
        if self._journal.rebuild:
            return
        known = {e.claim.uid for e in self._journal.entries()}
        try:
            self.daemons.sweep(known)
        except (KubeError, PluginError) as error:
            _log.warning("what claims that are gone have shared cannot be removed: %s", error)

    def end(self, entry: Entry) -> None:
        """Undo the time slice that the claim of ``entry`` set on its GPU.

        The one of another claim on the GPU is set, else the default. The journal still has
        ``entry``. If the driver refuses, the time slice stays: the GPU works with any.

        Raises:
            PluginError: the driver does not answer; to be tried again.
        """
        if entry.boot_id != self._boot_id:
            return
        others = [
            e.interval
            for e in self._journal.of_gpu(entry.gpu)
            if e.key != entry.key and e.interval and e.boot_id == self._boot_id
        ]
        try:
            self.time_slices.set(entry.gpu, others[-1] if others else DEFAULT)
        except (RefusedError, DeviceError) as error:
            _log.warning("the time slice stays", extra=device(entry, error=str(error)))


def _passes(check: Callable[[], None]) -> bool:
    try:
        check()
    except PluginError:
        return False
    return True
