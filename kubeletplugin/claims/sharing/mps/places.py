"""Files of one claim's daemon: what its clients get, and what tells of its state."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kubeletplugin.errors import HostError
from kubeletplugin.host.roots import Roots
from kubeletplugin.host.trees import make_bounded, remove_tree

_MEBIBYTES = 4096
_INODES = 8192
_ANYBODY = 0o1777


@dataclass(frozen=True, slots=True)
class Places:
    """The directory of one claim, which has the same path on the host.

    It is a bounded file system of its own. Clients see ``pipe`` and ``shm``, and have the daemon
    write to ``log``.

    Raises HostError where a file cannot be used.
    """

    folder: Path

    @property
    def pipe(self) -> Path:
        """Directory of the daemon's sockets."""
        return self.folder / "pipe"

    @property
    def log(self) -> Path:
        """Directory of the daemon's logs."""
        return self.folder / "log"

    @property
    def shm(self) -> Path:
        """Daemon's and clients' ``/dev/shm``, which stays when the daemon's pod is made again."""
        return self.folder / "shm"

    def make(self, roots: Roots) -> None:
        """Make the directories; those that are there stay."""
        make_bounded(roots, self.folder, mebibytes=_MEBIBYTES, inodes=_INODES)
        try:
            for folder in (self.pipe, self.log, self.shm):
                folder.mkdir(exist_ok=True)
            self.shm.chmod(_ANYBODY)
        except OSError as error:
            raise HostError(f"cannot make {self.folder}: {error.strerror or error}") from error

    def remove(self) -> None:
        """Remove all of it, without following links of a client."""
        try:
            remove_tree(self.folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise HostError(f"cannot remove {self.folder}: {error.strerror or error}") from error

    def is_alive(self) -> bool:
        """True if anything of the daemon lives: its processes have a FIFO open for reading."""
        try:
            fifo = os.open(self.folder / "alive", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False  # ENXIO: nobody reads
        os.close(fifo)
        return True

    def settings(self) -> str:
        """The settings with which the daemon is ready; empty while it is not."""
        return self._read("ready") if self.is_alive() else ""

    def _read(self, name: str) -> str:
        try:
            return (self.folder / name).read_text()
        except OSError:
            return ""
