"""Sharing of one device for as long as a claim holds it: set at Prepare, put back at the end."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from cdi.spec import Edits
from dra.claims.claims import Claim
from dra.claims.sharing import MPS, OFFERED, TIME_SLICING
from dra.kube.errors import KubeError
from kubeletplugin.claims.sharing.containers import ContainerCheck
from kubeletplugin.claims.sharing.hami_core import HamiCore
from kubeletplugin.claims.sharing.mps import MpsDaemons
from kubeletplugin.common import Common
from kubeletplugin.errors import DeviceError, HardwareError, PluginError
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.host.driverfiles import DriverFiles
from kubeletplugin.journal.entries import Entry, EntryKey, State
from kubeletplugin.telemetry.reports import device
from kubeletplugin.times import TIME_SLICE_END_SECONDS, TIME_SLICE_SECONDS

DEFAULT: Final = "Default"
_NUMBERS: Final = {DEFAULT: 0, "Short": 1, "Medium": 2, "Long": 3}
"""As ``nvidia-smi compute-policy --help`` prints them."""
_PROGRAM: Final = "nvidia-smi"
_SHOWN: Final = 200


class RefusedError(HardwareError):
    """The driver does not take the length for this GPU; carries its words."""


class TimeSlices:
    """Length of the turns that processes get on a whole GPU, set by ``nvidia-smi compute-policy``.

    NVML has no function for it (nvml.h knows time slices of vGPUs only); NVIDIA's device plugin and
    DRA driver call the same program (``nvlib.go:setTimeSlice`` of the latter). The driver keeps the
    length until it is set again, loaded anew, or the GPU is reset. The program is among the
    driver's ``files``. Thread-safe.
    """

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
        """End a process, and wait no longer than is usual: in the kernel it may hang for ever."""
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
                f"time slices are set by {_PROGRAM}, which is not found below {files.root}; "
                "install it with the driver, or choose sharing.strategy None"
            )
        return str(files.root / path.lstrip("/"))


_log = logging.getLogger(__name__)
_CLIENTS = "; restart the containers that use it once it does"


class DeviceSharing:
    """Sharing that journal entries ask for, brought to the node. Thread-safe.

    ``begin`` and ``end`` change the GPU, whose lock is held. Nothing else works on the claim.
    """

    def __init__(
        self, common: Common, hardware: Hardware, files: Callable[[], DriverFiles]
    ) -> None:
        self._journal = common.journal
        self._time_slices = TimeSlices(files)
        self._daemons = MpsDaemons(common, hardware, files)
        self._hami_core = HamiCore(common.options.roots, hardware)
        self._containers = ContainerCheck(common, limited=self._hami_core.limits)
        self._boot_id = hardware.boot_id

    def offers(self) -> tuple[str, ...]:
        """Strategies that this node can serve now, as capabilities of its MigNode."""
        checks = {TIME_SLICING: self._time_slices.check, MPS: self._daemons.check}
        return tuple(OFFERED[strategy] for strategy, check in checks.items() if _passes(check))

    def check(self, entry: Entry) -> None:
        """Refuse what this node cannot do, before the entry is written.

        Raises:
            PluginError: says what is missing.
        """
        if entry.interval:
            self._time_slices.check()
        if entry.mps is not None:
            self._daemons.check()

    def check_containers(self, claim: Claim, entries: Sequence[Entry]) -> None:
        """Refuse a claim that no pod could use, of which ``entries`` are all (ContainerCheck).

        Raises:
            PluginError: says why, or that it cannot be told yet.
        """
        self._containers.check(claim, entries)

    def edits(self, entries: Sequence[Entry]) -> dict[EntryKey, tuple[Edits, ...]]:
        """Additions to a container with each device of a claim, of which these are all.

        Raises:
            PluginError: a device cannot be shared as it is to be.
        """
        self._hami_core.check(entries)
        return {
            e.key: (
                self._hami_core.edits(e),
                *((self._daemons.edits(e),) if e.mps is not None else ()),
            )
            for e in entries
        }

    def begin(self, entry: Entry) -> None:
        """Set the length of turns that ``entry`` has, which the journal has; again changes nothing.

        Raises:
            PluginError: it is not set.
        """
        self._time_slices.set(entry.gpu, entry.interval)

    def serve(self, entry: Entry) -> None:
        """Return once the daemon of ``entry``, which has one, serves clients. No lock is held.

        Raises:
            PluginError: it does not.
        """
        self._daemons.begin(entry)

    def keep(self, entries: Iterable[Entry]) -> bool:
        """See to it that the daemons of ``entries``, which kubelet was told of, run. No lock held.

        The note of an entry says why its daemon does not serve; true if one has changed.

        Raises:
            PluginError: the journal cannot be written.
        """
        served = [e for e in entries if e.mps is not None and e.state is State.PREPARED]
        changed = {self._keep(entry) for entry in served}
        return True in changed

    def _keep(self, entry: Entry) -> bool:
        try:
            why = self._daemons.keep(entry)
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

    def stop(self, entry: Entry) -> None:
        """End the daemon of ``entry``, which has one, and return once it is gone. No lock is held.

        Raises:
            PluginError: it holds the device; to be tried again.
        """
        self._daemons.stop(entry.claim.uid)

    def sweep(self) -> None:
        """Remove what claims left that are not in the journal, unless something is missing from it.

        No method but this one looks at all daemons; it asks the API server.
        """
        if self._journal.rebuild:
            return
        known = {e.claim.uid for e in self._journal.entries()}
        try:
            self._hami_core.sweep(known)
            self._daemons.sweep(known)
        except (KubeError, PluginError) as error:
            _log.warning("what claims that are gone have shared cannot be removed: %s", error)

    def forget(self, uid: str) -> None:
        """Remove the files of a claim whose spec is gone; that there are none is fine.

        Raises:
            HostError: they cannot be removed.
        """
        self._hami_core.remove(uid)

    def end(self, entry: Entry) -> None:
        """Put back the length of turns of ``entry``, which the journal still has.

        Where another claim has the GPU too, its length is set.

        A length that the driver does not take back is left: the GPU works with any.

        Raises:
            PluginError: it is not put back; to be tried again.
        """
        if entry.boot_id != self._boot_id:
            return
        others = [
            e.interval
            for e in self._journal.of_gpu(entry.gpu)
            if e.key != entry.key and e.interval and e.boot_id == self._boot_id
        ]
        try:
            self._time_slices.set(entry.gpu, others[-1] if others else DEFAULT)
        except (RefusedError, DeviceError) as error:
            _log.warning("the time slice stays", extra=device(entry, error=str(error)))


def _passes(check: Callable[[], None]) -> bool:
    try:
        check()
    except PluginError:
        return False
    return True
