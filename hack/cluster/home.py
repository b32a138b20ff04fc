"""The directory of a cluster that runs in the background."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Home:
    """Directory of a cluster. A lock, which ends with its process, tells who owns it.

    Args:
        directory: need not exist.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "log"
        self.kubeconfig = directory / "kubeconfig"
        self._lock = directory / "owner"
        self._parts = directory / "c"

    def owner(self) -> int | None:
        """The process id of the cluster that runs here, or None."""
        try:
            with self._lock.open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return None
        except BlockingIOError:
            text = self._lock.read_text()
            return int(text) if text else None
        return None

    def is_ours(self) -> bool:
        """True if a cluster was ever here."""
        return self._lock.exists() or self.log.exists()

    @contextlib.contextmanager
    def owned(self, pid: int) -> Iterator[None]:
        """Owns the directory inside the block, and leaves no kubeconfig in it.

        Raises:
            BlockingIOError: somebody else owns it.
        """
        with self._lock.open("a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.truncate(0)
            lock.write(str(pid))
            lock.flush()
            try:
                yield
            finally:
                self.kubeconfig.unlink(missing_ok=True)

    def new_parts(self) -> Path:
        """An empty directory for the cluster's parts; an earlier cluster's is removed."""
        shutil.rmtree(self._parts, ignore_errors=True)
        self._parts.mkdir()
        return self._parts

    def publish(self, kubeconfig: Path) -> None:
        """Says that the cluster is ready."""
        written = self.kubeconfig.with_suffix(".new")
        shutil.copyfile(kubeconfig, written)
        written.rename(self.kubeconfig)

    def last_words(self) -> str:
        """The end of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])
