"""Taking a claim's devices off the hardware: for Unprepare, for rollback, for recovery."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kubeletplugin.errors import PluginError, StartingError
from kubeletplugin.hardware import GpuUnit, Hardware
from kubeletplugin.journal import Entry, Journal, State
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.slices import Slices
from kubeletplugin.specs import Specs

_log = logging.getLogger(__name__)


class Undo:
    """Removes what the journal lists; what cannot be removed stays listed and withheld."""

    def __init__(self, hardware: Hardware, journal: Journal, slices: Slices, specs: Specs) -> None:
        self._hardware = hardware
        self._journal = journal
        self._slices = slices
        self._specs = specs

    def everything(self, uid: str) -> str:
        """Remove all devices of a claim, and its CDI spec.

        Returns why something is left, empty when nothing is. Never raises PluginError or NvmlError.
        """
        problems: list[str] = []
        try:
            # First, so that no container gets what is about to go; recovery writes it again if
            # this process ends here.
            self._specs.remove(uid)
        except PluginError as error:
            problems.append(str(error))
        problems += self._entries(self._journal.of_claim(uid))
        return "; ".join(problems)

    def unfinished(self, uid: str) -> str:
        """Remove the devices of a claim that are not prepared; the spec goes if none is.

        Returns as ``everything``.
        """
        entries = self._journal.of_claim(uid)
        if not any(e.state is State.PREPARED for e in entries):
            return self.everything(uid)
        return "; ".join(self._entries([e for e in entries if e.state is not State.PREPARED]))

    def _entries(self, entries: Iterable[Entry]) -> list[str]:
        problems: list[str] = []
        for entry in entries:
            try:
                self._entry(entry)
            except (PluginError, NvmlError) as error:
                _log.error("%s of claim %s is left: %s", entry.device, entry.claim, error)
                problems.append(f"{entry.device}: {error}")
        return problems

    def _entry(self, entry: Entry) -> None:
        unit = self._hardware.unit(entry.gpu)
        if entry.placement is None:
            self._journal.remove(entry)
        elif unit is None:
            if not self._hardware.session.is_open or self._hardware.problems:
                why = "; ".join(self._hardware.problems) or "NVML is not available"
                raise StartingError(f"GPU {entry.gpu} cannot be asked now: {why}")
            _log.warning("GPU %s of %s is gone, and with it the slice", entry.gpu, entry.device)
            self._journal.remove(entry)
        else:
            self._slice(unit, entry)

    def _slice(self, unit: GpuUnit, entry: Entry) -> None:
        with unit.lock:
            try:
                if entry.state is not State.DESTROYING:
                    self._mark(entry)
                self._slices.remove(entry)
                self._journal.remove(entry)
            finally:
                self._hardware.observe(unit)

    def _mark(self, entry: Entry) -> None:
        """Record that it is to go; on a full disk it goes all the same, as the entry stays."""
        try:
            self._journal.put(entry.at(State.DESTROYING))
        except PluginError as error:
            _log.warning("%s of claim %s: %s", entry.device, entry.claim, error)
