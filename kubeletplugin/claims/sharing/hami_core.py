"""HAMi-core's library in containers, which limits their programs to a claim's share of a GPU.

The administrator installs the library as HAMi does: a directory with ``libvgpu.so`` and the
``ld.so.preload`` that names it. Variables and mounts are those of HAMi's device plugin (server.go,
Allocate), except the directory of the library's lock: HAMi has one for the node, through which
containers of all tenants can talk to each other; here each claim has its own. The library limits
only whole GPUs, as HAMi does not use it in MIG mode, and only claims that one container uses: it
counts in a file, which each container empties when it starts (HAMi-core,
multiprocess_memory_limit.c, ``init_proc_slot_withlock`` and ``clear_proc_slot_nolock``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from cdi.spec import Edits, Mount
from dra.gpu.shares import HAMI_CORE, ShareOffer
from kubeletplugin.errors import DeviceError, HostError, IncompleteError
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.host.roots import Roots
from kubeletplugin.host.trees import make_bounded, remove_tree
from kubeletplugin.journal.entries import Entry

_LIBRARY = "libvgpu.so"
_PRELOAD = "ld.so.preload"
_IN_CONTAINER = "/tmp/vgpulock"  # noqa: S108 - where the library keeps its lock
_ANYBODY = 0o777
_MEBIBYTES = 64
_INODES = 256
_MOST_CHARACTERS = 4096


class HamiCore:
    """Edits of containers with shares, and a directory for each claim. Thread-safe.

    The directory is made before the claim's CDI spec, and removed after it.
    """

    def __init__(self, roots: Roots, hardware: Hardware) -> None:
        self._roots = roots
        self._hardware = hardware
        self._folder = roots.state / "hami-core"

    def limits(self, entry: Entry) -> bool:
        """True if the library is to limit the claim of an entry to its share."""
        return self._offer(entry) is not None

    def _offer(self, entry: Entry) -> ShareOffer | None:
        """Present sharing offer of the entry's GPU if the library is to limit claims; else None."""
        unit = self._hardware.unit(entry.gpu)
        if unit is None or entry.share is None or entry.placement is not None:
            return None
        offer = unit.sharing
        return offer if offer is not None and offer.enforcer == HAMI_CORE else None

    def edits(self, entry: Entry) -> Edits:
        """Edits of a container with the share of ``entry``; empty if the library does not limit it.

        Raises:
            IncompleteError: the library is not there, or its preload file does not name it.
            HostError: the claim's directory cannot be made.
        """
        share, offer = entry.share, self._offer(entry)
        if share is None or offer is None:
            return Edits()
        self._check_library(offer.library)
        folder = self._made(entry.claim.uid)
        env = [
            f"CUDA_DEVICE_MEMORY_LIMIT={share.memory_mib}m",
            f"CUDA_DEVICE_MEMORY_SHARED_CACHE={_IN_CONTAINER}/{entry.claim.uid}.cache",
        ]
        if share.cores:
            env.append(f"CUDA_DEVICE_SM_LIMIT={share.cores}")
        return Edits(
            env=tuple(env),
            mounts=(
                Mount(f"{offer.library}/{_LIBRARY}", f"{offer.library}/{_LIBRARY}"),
                Mount(f"{offer.library}/{_PRELOAD}", "/etc/ld.so.preload"),
                Mount(str(folder), _IN_CONTAINER, writable=True),
            ),
        )

    def check(self, entries: Sequence[Entry]) -> None:
        """Check that a claim's shares have one size: the library has one limit for all devices.

        ``entries``: all entries of the claim.

        Raises:
            DeviceError: they have several sizes, or the claim also has a device alone.
        """
        if not any(map(self.limits, entries)):
            return
        held = [e.share for e in entries if not e.view]
        shares = {(share.memory_mib, share.cores) for share in held if share is not None}
        if len(shares) > 1:
            told = ", ".join(f"{memory} MiB and {cores} %" for memory, cores in sorted(shares))
            raise DeviceError(
                f"the claim has shares of several sizes ({told}), and HAMi-core has one limit for "
                "a container: write a claim for each size, and a container for each claim"
            )
        if None in held:
            raise DeviceError(
                "the claim has a share and a device that it has alone, and HAMi-core has one limit "
                "for a container: write a claim for each, and a container for each claim"
            )

    def _check_library(self, folder: str) -> None:
        remedy = (
            "put it there, or take hamiCore out of the class of the node, where nothing holds "
            "claims to their limits"
        )
        for name in (_LIBRARY, _PRELOAD):
            if not self._roots.on_host(f"{folder}/{name}").is_file():
                raise IncompleteError(f"HAMi-core's {folder}/{name} is not on this node; {remedy}")
        with self._roots.on_host(f"{folder}/{_PRELOAD}").open(errors="replace") as file:
            named = file.read(_MOST_CHARACTERS).replace(":", " ").split()  # as ld.so(8) does
        if f"{folder}/{_LIBRARY}" not in named:
            raise IncompleteError(
                f"{folder}/{_PRELOAD} does not name {folder}/{_LIBRARY}, so that no program would "
                f"load it: write that path into it, or {remedy.partition(', or ')[2]}"
            )

    def remove(self, claim_uid: str) -> None:
        """Remove a claim's directory, if there is one.

        Raises:
            HostError: it cannot be removed.
        """
        folder = self._folder / claim_uid
        try:
            remove_tree(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise HostError(f"cannot remove {folder}: {error.strerror or error}") from error

    def sweep(self, keep: Collection[str]) -> None:
        """Remove the directories of claims that are not in ``keep`` (UIDs).

        Raises:
            HostError: a directory cannot be removed.
        """
        try:
            found = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return
        for uid in found:
            if uid not in keep:
                self.remove(uid)

    def _made(self, claim_uid: str) -> Path:
        folder = self._folder / claim_uid
        try:
            make_bounded(self._roots, folder, mebibytes=_MEBIBYTES, inodes=_INODES)
            folder.chmod(_ANYBODY)  # a container may run as any user
        except OSError as error:
            raise HostError(f"cannot make {folder}: {error.strerror or error}") from error
        return folder
