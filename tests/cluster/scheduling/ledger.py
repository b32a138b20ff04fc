"""Who holds which memory slices of which GPU, by the claims' history alone.

Independent of the driver's model: device names are read here, and what a profile takes is written
out by hand from NVIDIA's MIG user guide (A100-SXM4-40GB).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_DEVICE = re.compile(r"gpu-(\d+)-mig-[a-z0-9-]+-(\d+)-(\d+)")

A100_40GB: dict[int, tuple[int, tuple[int, ...]]] = {
    19: (1, (0, 1, 2, 3, 4, 5, 6)),
    20: (1, (0, 1, 2, 3, 4, 5, 6)),
    15: (2, (0, 2, 4, 6)),
    14: (2, (0, 2, 4)),
    9: (4, (0, 4)),
    5: (4, (0,)),
    0: (8, (0,)),
}
"""Profile id to memory slices and possible starts."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Memory slices `start` to `end` (not included) of one GPU."""

    node: str
    gpu: int
    start: int
    end: int

    def overlaps(self, other: Piece) -> bool:
        """Whether both cannot exist at once."""
        same = (self.node, self.gpu) == (other.node, other.gpu)
        return same and self.start < other.end and other.start < self.end


def pieces(claim: dict[str, Any], *, driver: str) -> tuple[Piece, ...]:
    """What a claim was given.

    Raises:
        AssertionError: a device that no A100 has.
    """
    allocation = (claim.get("status") or {}).get("allocation") or {}
    found = []
    for result in (allocation.get("devices") or {}).get("results") or ():
        if result["driver"] != driver or result.get("adminAccess"):
            continue
        match = _DEVICE.fullmatch(result["device"])
        assert match is not None, f"no name of a slice: {result}"
        gpu, profile, start = (int(part) for part in match.groups())
        size, starts = A100_40GB[profile]
        assert start in starts, f"no placement of an A100: {result}"
        fields = allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"]
        found.append(Piece(fields[0]["values"][0], gpu, start, start + size))
    return tuple(found)


class Ledger:
    """Enters every event of a watch of claims; what contradicts itself is in `overlaps`.

    A claim holds its slices from the event with its allocation until one without it, or until it
    is gone. The API server orders the events of one kind, so that two claims which hold the same
    slice after any event held it at the same time.
    """

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._held: dict[str, tuple[Piece, ...]] = {}
        self._names: dict[str, str] = {}
        self.events = 0
        self.allocations = 0
        self.most_slices = 0
        self.overlaps: list[str] = []

    @property
    def holders(self) -> dict[str, str]:
        """The claims that hold something now, UID to name."""
        return {uid: self._names[uid] for uid in self._held}

    def enter(self, event: dict[str, Any]) -> None:
        """One event of the watch."""
        self.events += 1
        claim = event["object"]
        uid, name = claim["metadata"]["uid"], claim["metadata"]["name"]
        given = () if event["type"] == "DELETED" else pieces(claim, driver=self._driver)
        before = self._held.pop(uid, ())
        if given:
            self._check(name, given)
            self._held[uid], self._names[uid] = given, name
            self.allocations += not before
        held = sum(p.end - p.start for found in self._held.values() for p in found)
        self.most_slices = max(self.most_slices, held)

    def _check(self, name: str, given: tuple[Piece, ...]) -> None:
        for number, piece in enumerate(given):
            others = [(name, other) for other in given[:number]]
            others += [(self._names[u], o) for u, held in self._held.items() for o in held]
            self.overlaps += [
                f"after event {self.events}: {name} has {piece}, {other} has {its}"
                for other, its in others
                if piece.overlaps(its)
            ]
