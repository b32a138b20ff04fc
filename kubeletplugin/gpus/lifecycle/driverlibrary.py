"""NVML's library in this process: it stays the one that was mapped first, whatever is installed.

After an upgrade of the driver the kernel module is new and the mapped library old: nvmlInit answers
LIB_RM_VERSION_MISMATCH for ever, and only a new process maps the new library. The process then
ends, and kubelet starts its container again: unlike a program that executes itself anew, that also
renews what the container has mounted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from dra.claims.reasons import NodeReason
from dra.kube.timing import Clock, SystemClock
from kubeletplugin.host.driverversions import (
    Mapped,
    compare,
    installed,
    is_mismatch,
    kernel_module,
    mapped_library,
)
from kubeletplugin.host.roots import Roots
from kubeletplugin.telemetry.reports import Reports

_log = logging.getLogger(__name__)
LASTING_SECONDS = 5.0
"""Duration after which a mismatch is no moment in the middle of an upgrade."""
OVERDUE_SECONDS = 45.0
"""Time to end in order, with calls that run; then liveness fails."""

_RECORD = "library.json"


class DriverLibrary:
    """Tells when only a new process helps; ``end`` makes this one stop. For one thread.

    A process that ended for it in vain does not end for the same again: the next finds its record
    in the state directory.
    """

    def __init__(
        self,
        roots: Roots,
        directories: Sequence[str],
        *,
        end: Callable[[], None],
        reports: Reports,
        clock: Clock | None = None,
    ) -> None:
        self._roots = roots
        self._directories = directories
        self._end = end
        self._reports = reports
        self._clock = clock or SystemClock()
        self._file: tuple[int, int] | None = None
        self._since: float | None = None
        self._ended: float | None = None
        self._why = ""
        self._settled = False

    @property
    def doubtful(self) -> bool:
        """True if NVML and the kernel module do not match at present."""
        return self._since is not None

    def note_answer(self) -> None:
        """Take note that NVML answers."""
        self._since = None
        if not self._settled:
            self._settled = True
            self._remember()
            (self._roots.state / _RECORD).unlink(missing_ok=True)

    def note_failure(self, error: Exception) -> None:
        """Take note that NVML does not answer; ends the process where a new one would help."""
        if not is_mismatch(error):
            self._since = None
            return
        self._remember()
        now = self._clock.monotonic()
        self._since = now if self._since is None else self._since
        if self._ended is not None or now - self._since < LASTING_SECONDS:
            return
        self._why = self._reason()
        if not self._why:
            return
        self._ended = now
        message = f"{self._why}; this plugin ends, to be started with the new library"
        _log.warning("%s", message)
        self._reports.report_node(NodeReason.LIBRARY_REPLACED, message)
        self._end()

    def overdue(self) -> str:
        """Reason for liveness why this process should have ended by now; empty if none."""
        if self._ended is None or self._clock.monotonic() - self._ended < OVERDUE_SECONDS:
            return ""
        return f"{self._why}; this process has not ended"

    def explain(self, error: Exception) -> str:
        """The error's text; of a version mismatch, with the versions of all three."""
        if not is_mismatch(error):
            return str(error)
        return f"{error}; {self._versions()}"

    def _versions(self) -> str:
        found = mapped_library()
        if found is not None and self._is_replaced(found):
            found = replace(found, deleted=True)
        return compare(self._roots, self._directories, found)

    def _reason(self) -> str:
        """Reason why a new process would map another library than this; empty if none."""
        found = mapped_library()
        if found is None:
            return ""
        words = f"the driver was exchanged: {self._versions()}"
        if self._is_replaced(found):
            return words
        # Its directory may be a mount that still shows the old file, so that the process cannot
        # see that it was replaced: only a new container does.
        kernel = kernel_module(self._roots)
        if not found.version or found.version == kernel:
            return ""
        if kernel not in installed(self._roots, self._directories):
            return ""
        return words if self._first_time(found.version, kernel) else ""

    def _is_replaced(self, found: Mapped) -> bool:
        return found.deleted or _identity(found.path) != self._file

    def _remember(self) -> None:
        """Keep which file it was, as ``stat`` shows it: numbers in maps may be a lower layer's."""
        if self._file is None and (found := mapped_library()) is not None:
            self._file = _identity(found.path)

    def _first_time(self, mapped: str, kernel: str) -> bool:
        path = self._roots.state / _RECORD
        record = json.dumps({"mapped": mapped, "kernel": kernel})
        try:
            if path.is_file() and path.read_text() == record:
                return False
            path.write_text(record)
        except OSError as error:
            _log.warning("%s: %s", path, error)
            return False  # it could not be told whether it helped
        return True


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
