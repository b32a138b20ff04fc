"""Folders that containers may write to: each a file system of its own, bounded, and removed.

On the file system of the plugin's state a tenant could fill the disk, with bytes, inodes or files
that are open and deleted, and no claim of anybody could be prepared. In its own tmpfs a tenant
fills that (tmpfs(5): ``size``, ``nr_inodes``), and what it writes counts as memory of its
container. Where nothing can be mounted the folder is a plain one: a tenant may nest folders in it
tens of thousands deep, and make millions of files, so one folder is open at a time besides the
outermost, none calls for the next, and names are read in portions.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import secrets
from contextlib import suppress
from itertools import islice
from pathlib import Path

from kubeletplugin.errors import HostError
from kubeletplugin.host.roots import Roots

_log = logging.getLogger(__name__)
_LIBC = ctypes.CDLL(None, use_errno=True)
# <sys/mount.h>
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_AT_ONCE = 1000


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
    top = os.open(folder, _FLAGS)
    try:
        while portion := _portion(top):
            for name, is_directory in portion:
                with suppress(FileNotFoundError):
                    if is_directory:
                        _flatten(name, top)
                    else:
                        os.unlink(name, dir_fd=top)
    finally:
        os.close(top)
    folder.rmdir()


def _flatten(name: str, top: int) -> None:
    """Remove a folder in ``top``, where the folders in it are put."""
    inside = os.open(name, _FLAGS, dir_fd=top)
    try:
        while portion := _portion(inside):
            for inner, is_directory in portion:
                with suppress(FileNotFoundError):
                    if is_directory:
                        # A name that nobody has taken: what is there would be in the way.
                        new = f".{secrets.token_hex(8)}"
                        os.rename(inner, new, src_dir_fd=inside, dst_dir_fd=top)
                    else:
                        os.unlink(inner, dir_fd=inside)
    finally:
        os.close(inside)
    os.rmdir(name, dir_fd=top)


def _portion(folder: int) -> list[tuple[str, bool]]:
    """Some of the names in a folder, each with whether it is a folder; none once it is empty."""
    with os.scandir(folder) as found:
        return [(e.name, e.is_dir(follow_symlinks=False)) for e in islice(found, _AT_ONCE)]
