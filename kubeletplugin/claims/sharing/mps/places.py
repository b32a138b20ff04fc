"""Files of one claim's daemon: what its clients get, and what tells of its state."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kubeletplugin.errors import HostError
from kubeletplugin.host.trees import remove_tree

SHM_VOLUME = "shm"


@dataclass(frozen=True, slots=True)
class Places:
    """The directory of one claim, which has the same path on the host. Clients see ``pipe`` alone.

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

    def make(self) -> None:
        """Make the directories; those that are there stay."""
        try:
            for folder in (self.pipe, self.log):
                folder.mkdir(parents=True, exist_ok=True)
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

    def shm(self, kubelet: Path) -> Path:
        """The daemon's ``/dev/shm`` on the host: a volume of its pod, which kubelet has mounted.

        Source of the path: Kubernetes, pkg/kubelet/kubelet_getters.go:getPodVolumeDir.
        """
        pod = self._read("pod")
        if not pod:
            raise HostError(f"the MPS daemon of {self.folder} has not started yet")
        return kubelet / "pods" / pod / "volumes/kubernetes.io~empty-dir" / SHM_VOLUME

    def _read(self, name: str) -> str:
        try:
            return (self.folder / name).read_text()
        except OSError:
            return ""
