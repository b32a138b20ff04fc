"""Folders that containers may write to: each a file system of its own, bounded, and removed.

On the file system of the plugin's state a tenant could fill the disk, with bytes, inodes or files
that are open and deleted, and no claim of anybody could be prepared. In its own tmpfs a tenant
fills that (tmpfs(5): ``size``, ``nr_inodes``), and what it writes counts as memory of its
container. Where nothing can be mounted the folder is a plain one, in which a tenant may nest
folders tens of thousands deep, and make millions of files.
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
    """Make a folder that holds no more than that, or leave it as it is if it is one already.

    A process without CAP_SYS_ADMIN, to which NVML makes no slice, gets a plain folder (EPERM).

    Raises:
        HostError: it cannot be made, or containers would not see it.
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
    """Remove a folder with all that is in it; no link in it is followed, be it put there meanwhile.

    A file system that is mounted on it goes with what is in it, also where another mount namespace
    has it: the kernel ends mounts on a directory that is removed (run on Linux 6).

    Raises:
        FileNotFoundError: there is no such folder.
        OSError: something in it cannot be removed.
    """
    _unmount(folder)
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        # Neither as deep as a tenant nests nor as wide are its calls and what it has open.
        command = ["rm", "--recursive", "--force", "--", str(folder)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
        if done.returncode:
            raise OSError(errno.EIO, done.stderr.strip()[:_MOST_WORDS], str(folder)) from error
