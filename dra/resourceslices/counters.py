"""Counters of partitionable devices (KEP-4815) for the parts of a GPU that devices share.

One counter set per GPU, called as in NVIDIA's DRA driver: its capacities with hyphens, since a
counter's name is a DNS label, and one counter per memory slice. Together they say exactly what
``Geometry.fits`` says: devices that fit beside each other are those whose counters suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from dra.common.quantity import mebibytes
from dra.gpu.geometry import Engines, Geometry, Occupant, Placement, Profile

Counters = dict[str, Any]
"""``{name: {"value": quantity}}``."""

_MEMORY = "memory"
_COMPUTE_SLICES = "compute-slices"
_ENGINES = {field.replace("_", "-"): field for field in Engines._fields}


def _engines(field: str, profile: Profile) -> int:
    count: int = getattr(profile.engines, field)
    return count


_AMOUNTS: Mapping[str, Callable[[Profile], int]] = {
    _MEMORY: lambda p: p.memory_mib,
    "multiprocessors": lambda p: p.multiprocessors,
    _COMPUTE_SLICES: lambda p: p.compute_slices,
    **{name: partial(_engines, field) for name, field in _ENGINES.items()},
}


class CounterModel:
    """The counters of GPUs of one geometry.

    Memory and multiprocessors are there to be read: their totals are the most that instances beside
    each other have, so that memory slices always bind first. Compute slices are counted only where
    memory slices do not bind before them.
    """

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self._totals = {n: t for n, t in _totals(geometry).items() if t}

    def shared(self, occupants: Iterable[Occupant] = ()) -> Counters:
        """The counters of a GPU, less what ``occupants`` take for which no claim accounts."""
        taken = [*occupants]
        profiles = [p for o in taken if (p := self._profile(o)) is not None]
        counters: Counters = {}
        for name, total in self._totals.items():
            left = total - sum(map(_AMOUNTS[name], profiles))
            counters[name] = _value(name, max(0, left))
        free = ~self._geometry.usage(taken).mask
        for index in range(self._geometry.memory_slices):
            counters[_memory_slice(index)] = {"value": str(free >> index & 1)}
        return counters

    def consumed(self, profile: Profile, placement: Placement) -> Counters:
        """Counters that an instance of ``profile`` at ``placement`` takes; none is left out."""
        amounts = {name: _AMOUNTS[name](profile) for name in self._totals}
        counters: Counters = {n: _value(n, amount) for n, amount in amounts.items() if amount}
        for index in range(placement.start, placement.start + placement.size):
            counters[_memory_slice(index)] = {"value": "1"}
        return counters

    def _profile(self, occupant: Occupant) -> Profile | None:
        return None if occupant.profile_id is None else self._geometry.by_id(occupant.profile_id)


def _totals(geometry: Geometry) -> dict[str, int]:
    most = {name: _most(geometry, amount) for name, amount in _AMOUNTS.items()}
    binding = dict(zip(_ENGINES, geometry.engine_totals, strict=True))
    if most[_COMPUTE_SLICES] > geometry.compute_slices:
        binding[_COMPUTE_SLICES] = geometry.compute_slices
    else:
        del most[_COMPUTE_SLICES]
    return most | binding


def _most(geometry: Geometry, amount: Callable[[Profile], int]) -> int:
    """The greatest sum of ``amount`` over instances whose memory slices do not overlap."""
    best = [0]
    for end in range(1, geometry.memory_slices + 1):
        last = (
            best[q.start] + amount(p)
            for p in geometry.profiles
            for q in p.placements
            if q.start + q.size == end
        )
        best.append(max([best[-1], *last]))
    return best[-1]


def _value(name: str, amount: int) -> dict[str, str]:
    return {"value": mebibytes(amount) if name == _MEMORY else str(amount)}


def _memory_slice(index: int) -> str:
    return f"memory-slice-{index}"
