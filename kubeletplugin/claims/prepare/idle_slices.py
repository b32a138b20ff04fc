"""GPU instances of released slices, kept for a while for the next claim of the same namespace.

Only the GPU instance stays: the next claim gets a compute instance of its own. Whoever needs its
memory slices otherwise has it destroyed first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from dra.gpu.shares import ANY_TENANT
from dra.kube.timing import Clock, SystemClock
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.journal.entries import Entry, State


class IdleSlices:
    """Tells what is kept, and when it has been kept for ``seconds``. Thread-safe.

    With 0 nothing is. ``leaves`` says of a GPU, by name, that it is to be released.
    """

    def __init__(
        self,
        hardware: Hardware,
        *,
        seconds: float,
        leaves: Callable[[str], bool],
        clock: Clock | None = None,
    ) -> None:
        self._hardware = hardware
        self._seconds = seconds
        self._leaves = leaves
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._since: dict[tuple[str, str], float] = {}

    def keeps(self, entry: Entry) -> bool:
        """True if the GPU instance of an entry stays when its claim is released.

        One in which claims of any namespace had a part is no single namespace's.
        """
        if entry.share is not None and entry.share.tenant == ANY_TENANT:
            return False
        is_fit = entry.idle or (entry.state is State.PREPARED and entry.placement is not None)
        return bool(self._seconds) and is_fit and self._may_stay(entry)

    def due(self, entries: Iterable[Entry]) -> frozenset[str]:
        """UIDs of claims whose idle slices are to go; ``entries`` are all that there are."""
        idle = [e for e in entries if e.idle and not e.ready]
        now = self._clock.monotonic()
        with self._lock:
            self._since = {e.key: self._since.get(e.key, now) for e in idle}
            return frozenset(
                e.claim.uid
                for e in idle
                if now - self._since[e.key] >= self._seconds or not self._may_stay(e)
            )

    def _may_stay(self, entry: Entry) -> bool:
        unit = self._hardware.unit(entry.gpu)
        if unit is None:
            return False
        gpu = unit.known
        return not (gpu.conflict or gpu.released or gpu.unwell or self._leaves(unit.name))
