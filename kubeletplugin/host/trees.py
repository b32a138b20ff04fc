"""Folders that containers may write to: each is a tmpfs of limited size.

In the file system of the plugin's state a tenant could fill the disk, with bytes, inodes or files
that are open and deleted, so that no claim of anybody could be prepared. In a tmpfs of its own a
tenant can fill only that tmpfs (tmpfs(5): ``size``, ``nr_inodes``), and its files count as memory
of its container. Where nothing can be mounted the folder is a plain one, in which a tenant may nest
folders tens of thousands deep and make millions of files.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import subprocess
from pathlib import Path

from kubeletplugin.errors import HostError
from kubeletplugin.host.roots import Roots

_log = logging.getLogger(__name__)
_LIBC = ctypes.CDLL(None, use_errno=True)
# <sys/mount.h>
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_MOST_WORDS = 500


def make_bounded(roots: Roots, folder: Path, *, mebibytes: int, inodes: int) -> None:
    """Make a folder that holds at most so many MiB and inodes; one that is mounted is left as is.

    Without CAP_SYS_ADMIN (EPERM) the folder becomes a plain one; such a process cannot make slices.

    Raises:
        HostError: the folder cannot be made, or containers would not see its file system.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not folder.is_mount():
            options = f"size={mebibytes}m,nr_inodes={inodes},mode=755"
            _mount(folder, options)
        seen = roots.on_host(str(folder))
        if seen.exists() and seen.stat().st_dev != folder.stat().st_dev:
            _unmount(folder)
            raise HostError(
                f"what is mounted on {folder} is not seen on the host: the plugin's pod needs "
                "mountPropagation: Bidirectional for the volume with its state directory"
            )
    except OSError as error:
        raise HostError(f"cannot make {folder}: {error.strerror or error}") from error


def _mount(folder: Path, options: str) -> None:
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    if _LIBC.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, options.encode()) == 0:
        return
    number = ctypes.get_errno()
    if number != errno.EPERM:
        raise OSError(number, os.strerror(number))
    _log.warning("%s is not bounded: without CAP_SYS_ADMIN nothing can be mounted", folder)


def _unmount(folder: Path) -> None:
    """Unmount what is mounted on a folder, also while somebody has files of it open."""
    _LIBC.umount2(os.fsencode(folder), _MNT_DETACH | _UMOUNT_NOFOLLOW)  # else nothing is mounted


def remove_tree(folder: Path) -> None:
    """Remove a folder with its content. Links are not followed, also those made meanwhile.

    A file system that is mounted on the folder is unmounted, in other mount namespaces too: the
    kernel ends all mounts on a directory that is removed (tried on Linux 6).

    Raises:
        FileNotFoundError: there is no such folder.
        OSError: a file in it cannot be removed.
    """
    _unmount(folder)
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        # rm needs few calls and open files however deep and wide a tenant has nested folders.
        command = ["rm", "--recursive", "--force", "--", str(folder)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
        if done.returncode:
            raise OSError(errno.EIO, done.stderr.strip()[:_MOST_WORDS], str(folder)) from error
