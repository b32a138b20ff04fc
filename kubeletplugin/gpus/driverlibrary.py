"""NVML's library in this process: the file that was mapped first stays mapped.

After an upgrade of the driver the kernel module is new and the mapped library old: nvmlInit answers
LIB_RM_VERSION_MISMATCH for ever, and only a new process maps the new library. The process then
ends, and kubelet starts its container again. A process that only executed itself anew would keep
the container's old mounts.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dra.claims.reasons import NodeReason
from dra.kube.timing import Clock
from kubeletplugin import times
from kubeletplugin.host.libraries import LIBRARY_DIRECTORIES, library_directories
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.errors import is_mismatch
from kubeletplugin.telemetry.reports import Reports

_log = logging.getLogger(__name__)
_KERNEL = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)")
_LIBRARY = "libnvidia-ml.so."
_NAME = re.compile(r"libnvidia-ml\.so(\.\d+|\.(?P<version>\d+(\.\d+)+))?")
_DELETED = " (deleted)"
_RECORD = "library.json"


@dataclass(frozen=True, slots=True)
class Mapped:
    """The library file that this process has mapped.

    ``version``: version in the file's name, empty if it has none. ``deleted``: the file was removed
    or replaced since.
    """

    path: Path
    version: str
    deleted: bool = False

    def __str__(self) -> str:
        """The version, or the path of a file without a version in its name."""
        gone = " (its file was replaced since)" if self.deleted else ""
        return f"{self.version or self.path}{gone}"

    @property
    def identity(self) -> tuple[int, int] | None:
        """Device and inode of the file that now has the path; None if there is none."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino


def mapped_library(maps: Path = Path("/proc/self/maps")) -> Mapped | None:
    """The file of NVML's library in this process; None before it is loaded."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        path = line.partition("/")[2]
        name = path.rpartition("/")[2].removesuffix(_DELETED)
        if match := _NAME.fullmatch(name):
            whole = Path(f"/{path.removesuffix(_DELETED)}")
            return Mapped(whole, match["version"] or "", deleted=path.endswith(_DELETED))
    return None


def kernel_module(roots: Roots) -> str:
    """Version of the loaded kernel module; empty if none is loaded or the version is unknown."""
    try:
        text = roots.on_host("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    found = _KERNEL.search(text)
    return found.group(1) if found else ""


def installed(roots: Roots, directories: Sequence[str] = LIBRARY_DIRECTORIES) -> list[str]:
    """Versions of the NVML libraries below the driver root, from their file names.

    Links whose names have no full version are left out.
    """
    names = {
        path.name.removeprefix(_LIBRARY)
        for directory in library_directories(roots, directories).values()
        for path in directory.glob(f"{_LIBRARY}*.*")
    }
    return sorted(names)


def explain(
    error: Exception,
    roots: Roots,
    directories: Sequence[str] = LIBRARY_DIRECTORIES,
    mapped: Mapped | None = None,
) -> str:
    """Text of an error; for a version mismatch with the three versions that are involved.

    These are the kernel module's, the installed library's and this process's library's.
    """
    if not is_mismatch(error):
        return str(error)
    return f"{error}; {_versions(roots, directories, mapped or mapped_library())}"


def _versions(roots: Roots, directories: Sequence[str], mapped: Mapped | None) -> str:
    libraries = ", ".join(installed(roots, directories)) or "unknown"
    return (
        f"kernel module {kernel_module(roots) or 'unknown'}, installed library {libraries}, "
        f"library of this process {mapped or 'unknown'}"
    )


class DriverLibrary:
    """Ends this process when only a new process can use the driver. To be used by one thread only.

    ``end``: makes this process stop. A record in the state directory keeps the next process from
    ending for the same pair of versions, if the first end did not help.
    """

    def __init__(
        self,
        roots: Roots,
        directories: Sequence[str],
        *,
        end: Callable[[], None],
        reports: Reports,
        clock: Clock,
    ) -> None:
        self._roots = roots
        self._directories = directories
        self._end = end
        self._reports = reports
        self._clock = clock
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
        """Take note that NVML does not answer; ends the process if a new one would help."""
        if not is_mismatch(error):
            self._since = None
            return
        self._remember()
        now = self._clock.monotonic()
        self._since = now if self._since is None else self._since
        if self._ended is not None or now - self._since < times.MISMATCH_SECONDS:
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
        """Failure of liveness: why this process should have ended by now; empty if it need not."""
        if self._ended is None:
            return ""
        late = self._clock.monotonic() - self._ended >= times.END_OVERDUE_SECONDS
        return f"{self._why}; this process has not ended" if late else ""

    def explain(self, error: Exception) -> str:
        """Text of an error, as the function :func:`explain` of this module gives it."""
        return explain(error, self._roots, self._directories, self._mapped())

    def _mapped(self) -> Mapped | None:
        """The mapped library; ``deleted`` is also set if its path has another file by now."""
        found = mapped_library()
        if found is not None and found.identity != self._file:
            found = replace(found, deleted=True)
        return found

    def _reason(self) -> str:
        """Reason why a new process would map another library; empty if it would map the same."""
        found = self._mapped()
        if found is None:
            return ""
        versions = _versions(self._roots, self._directories, found)
        words = f"the driver was exchanged: {versions}"
        if found.deleted:
            return words
        # The library's directory may be a mount that still shows the old file: this process then
        # cannot see that the file was replaced, but a new container can.
        kernel = kernel_module(self._roots)
        if not found.version or found.version == kernel:
            return ""
        if kernel not in installed(self._roots, self._directories):
            return ""
        return words if self._first_time(found.version, kernel) else ""

    def _remember(self) -> None:
        """Keep device and inode of the mapped file, from ``stat``, once.

        The numbers in ``/proc/self/maps`` may be those of a lower layer of an overlay.
        """
        if self._file is None and (found := mapped_library()) is not None:
            self._file = found.identity

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
