"""Instances on GPUs that no claim's allocation accounts for, so that their room is not offered."""

from __future__ import annotations

from collections.abc import Sequence

from dra.gpu.geometry import Occupant
from dra.gpu.inventory import Gpu, InstanceState
from dra.kube.timing import Clock

SETTLE_SECONDS = 4.0
"""Time that a slice may take to go before it is unavailable.

Until its claim has been unprepared, which waits for it some seconds longer, the claim's allocation
accounts for it; and most are gone within a second, so that no ResourceSlice is written for them.
"""

_GOING = (InstanceState.RECLAIMING, InstanceState.ORPHAN)


_Key = tuple[str, Occupant]


class Unaccounted:
    """Remembers since when instances have been going. Not thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[_Key, float] = {}

    def look(self, gpus: Sequence[Gpu]) -> dict[str, tuple[Occupant, ...]]:
        """Placements that are not to be offered now, by GPU UUID."""
        now = self._clock.monotonic()
        on = [(g.uuid, i.occupant, i.state) for g in gpus for i in g.instances]
        stays = {(uuid, occupant) for uuid, occupant, state in on if state not in _GOING}
        # Of a slice that several claims share, one may be on its way out for long.
        going = {(uuid, occupant) for uuid, occupant, _ in on} - stays
        self._since = {key: self._since.get(key, now) for key in going}
        blocked: dict[str, dict[Occupant, None]] = {}
        for uuid, occupant, state in on:
            since = self._since.get((uuid, occupant), now)
            if state is InstanceState.FOREIGN or now - since >= SETTLE_SECONDS:
                blocked.setdefault(uuid, {})[occupant] = None
        return {uuid: tuple(occupants) for uuid, occupants in blocked.items()}

    def due(self) -> float | None:
        """Seconds until something that is going will have taken too long; None if nothing will."""
        now = self._clock.monotonic()
        left = (since + SETTLE_SECONDS - now for since in self._since.values())
        return min((seconds for seconds in left if seconds > 0), default=None)
