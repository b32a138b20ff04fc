"""Sharing of one device for as long as a claim holds it: set at Prepare, put back at the end."""

from __future__ import annotations

import logging

from kubeletplugin.errors import IncompleteError
from kubeletplugin.journal.entries import Entry
from kubeletplugin.journal.journal import Journal
from kubeletplugin.sharing.timeslices import DEFAULT, RefusedError, TimeSlices
from kubeletplugin.telemetry.logfields import device

_log = logging.getLogger(__name__)


class DeviceSharing:
    """Sharing that journal entries ask for, brought to the node. Thread-safe.

    Of one GPU only one method runs at a time: its lock is held.
    """

    def __init__(self, journal: Journal, time_slices: TimeSlices, *, boot_id: str) -> None:
        self._journal = journal
        self._time_slices = time_slices
        self._boot_id = boot_id

    def check(self, entry: Entry) -> None:
        """Refuse what this node cannot do, before the entry is written.

        Raises:
            PluginError: says what is missing.
        """
        if entry.interval:
            self._time_slices.check()

    def begin(self, entry: Entry) -> None:
        """Set what ``entry``, which the journal has, asks for; a repeated call changes nothing.

        Raises:
            PluginError: it is not set.
        """
        if entry.interval:
            self._time_slices.set(entry.gpu, entry.interval)

    def end(self, entry: Entry) -> None:
        """Put back what was set for ``entry``, which the journal still has, unless others need it.

        A length that the driver does not take back is left: the GPU works with any.

        Raises:
            PluginError: it is not put back; to be tried again.
        """
        if not entry.interval or entry.boot_id != self._boot_id:
            return
        others = [
            e.interval
            for e in self._journal.of_gpu(entry.gpu)
            if e.key != entry.key and e.interval and e.boot_id == self._boot_id
        ]
        try:
            self._time_slices.set(entry.gpu, others[-1] if others else DEFAULT)
        except (RefusedError, IncompleteError) as error:
            _log.warning("the time slice stays", extra=device(entry, error=str(error)))
