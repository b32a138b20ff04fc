"""Memory slices of the random world: each is held once, or by shares that fit."""

from __future__ import annotations

from collections.abc import Iterable

from dra.common.resources import Obj
from dra.gpu.names import MigDevice
from tests.controller.world.worldnodes import SHARING
from tests.controller.world.worldobjects import consumed, held


def check_held_once(claims: Iterable[tuple[str, Obj]]) -> None:
    """No two claims, by name, hold the same memory slice, but by shares that fit together."""
    taken: dict[tuple[str, int, int], tuple[str, MigDevice]] = {}
    given: dict[tuple[str, MigDevice], list[int]] = {}
    for name, obj in claims:
        for where, device, profile in held(obj):
            for piece in range(device.start, device.start + profile.memory_slices):
                place = (where, device.minor, piece)
                other, theirs = taken.setdefault(place, (name, device))
                is_own = (other, theirs) == (name, device)
                shared = device.shared and theirs == device and other != name
                assert is_own or shared, f"{name} and {other} both have {place}"
            if device.shared:
                shares = given.setdefault((where, device), [])
                shares.append(consumed(obj, device))
                assert len(shares) <= SHARING.shares, f"{device} has {len(shares)} claims"
                assert sum(shares) <= profile.memory_mib, f"{device} is given {sum(shares)} MiB"
