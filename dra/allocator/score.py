"""Policies of the controller: the cost of a placement for the cluster.

The default, SWS (scarcity-weighted slices), counts in memory slices what the mix of requests can no
longer use. A placement costs every other placement that it makes impossible, weighted by how likely
places for that profile run out before the GPUs are full. It costs the free memory slices that the
common profiles can use no more, and the first slice on a GPU costs a little. GPUs of one geometry
serve each other's demand: scarcity is counted among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import mul
from typing import NamedTuple

from dra.allocator.moves import Move, MoveTable
from dra.gpu.geometry import EMPTY, Geometry, Usage
from dra.gpu.inventory import IdleInstance

WASTE_CHARGE = 0.2
"""Cost of a memory slice made unusable, in expected memory slices."""

OPENING_CHARGE = 0.08
"""Cost of the first slice on a GPU: a free one can be given whole, switched off or taken away."""

COMMON = (1 / 2, 1 / 8, 1 / 32)
"""Sets of profiles, by how often each is asked for at least, in relation to the commonest.

Waste is the mean over these sets of what a set can use no more: the common ones are in all of them.
"""

BASE_WEIGHT = 1e-4
"""Weight of a placement of a profile that is not scarce, so that less damage still wins."""


class Demand:
    """The mix of requested profiles, learnt online: exponentially weighted counts by profile name.

    Before anything is observed all plain profiles are alike; together they count as one request.
    Profiles with a suffix (``+me``, ``-me``, ``+gfx``) count only once they are asked for: they are
    variants, not sizes.
    """

    def __init__(self, *, memory: float = 200.0) -> None:
        self.observed = 0
        """Number of changes: what was worked out from the mix is valid while it is the same."""
        self._decay = 1.0 - 1.0 / memory
        self._counts: dict[str, float] = {}

    def observe(self, profile: str) -> None:
        """Count one request for ``profile``."""
        for name in self._counts:
            self._counts[name] *= self._decay
        self._counts[profile] = self._counts.get(profile, 0.0) + 1.0
        self.observed += 1

    def shares(self, geometry: Geometry) -> tuple[float, ...]:
        """Per profile of ``geometry``, its share of the requests; they sum to one."""
        known, each = self._counts.get, 1 / max(1, sum(geometry.plain))
        profiles = zip(geometry.profiles, geometry.plain, strict=True)
        counts = [known(profile.name, 0.0) + each * plain for profile, plain in profiles]
        total = sum(counts)
        return tuple([c / total for c in counts]) if total else tuple(counts)


@dataclass(slots=True)
class Census:
    """Number of GPUs of one geometry, and their free memory slices.

    ``feasible``: per profile, the places for it on these now.
    """

    table: MoveTable
    gpus: int = 0
    free: int = 0
    feasible: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.feasible:
            self.feasible = [0] * len(self.table.geometry.profiles)

    def add(self, usage: Usage, *, count: int = 1) -> None:
        """Count ``count`` GPUs in state ``usage``; negative takes them away."""
        self.gpus += count
        self.free += count * (self.table.geometry.memory_slices - usage.mask.bit_count())
        for index, number in enumerate(self.table.feasible(usage)):
            self.feasible[index] += count * number


class Weights(NamedTuple):
    """Weights of slices of one geometry now.

    ``placements``: per profile of the geometry, the worth of one of its feasible placements in
    memory slices. ``wanted``: sets of profiles that are asked for often, by ``COMMON``; a bit per
    profile of the geometry.
    """

    placements: tuple[float, ...]
    wanted: tuple[int, ...]


NO_WEIGHTS = Weights((), ())
"""Weights where no slices can be made."""


class Situation(NamedTuple):
    """All that a policy may look at besides the move: the GPU before it, and what slices weigh.

    ``weights``: those of ``scarcity_weights``. ``instances``: number of those on the GPU. ``idle``:
    idle slices, which take no room and are no part of ``usage``.
    """

    usage: Usage
    instances: int
    weights: Weights
    idle: tuple[IdleInstance, ...] = ()


Cost = tuple[float, ...]
"""Price of a move: compared entry by entry, the lowest wins; equal ones go by GPU, then start.

Prices are added up over the devices of a claim, entry by entry. They are kept by situation and
move, so a policy may depend on these two alone. The first entry is in memory slices, or a whole
number; ``REUSE_CREDIT`` is taken off it where an idle slice is used again.
"""

MOST_COSTS = 3
"""Upper bound on the entries of a policy's cost."""

Policy = Callable[[Situation, Move], Cost]


def scarcity_weights(census: Census, shares: tuple[float, ...]) -> Weights:
    """Weights of slices where profiles have these shares of the requests.

    A placement: the probability that, of the requests that would fill what is free, those for the
    profile (a Poisson number) are at least as many as the placements left, times its size.
    """
    sizes = census.table.geometry.sizes
    mean = sum(map(mul, shares, sizes))
    if not mean:
        return Weights((0.0,) * len(sizes), (census.table.every,))
    requests, most = census.free / mean, max(shares)
    placements = tuple(
        size * (poisson_tail(requests * share, left) + BASE_WEIGHT * share)
        for size, share, left in zip(sizes, shares, census.feasible, strict=True)
    )
    wanted = (
        sum((share >= part * most) << index for index, share in enumerate(shares))
        for part in COMMON
    )
    return Weights(placements, tuple(wanted))


def poisson_tail(mean: float, least: int) -> float:
    """``P(X >= least)`` for a Poisson variable with the given mean."""
    if least <= 0:
        return 1.0
    if mean <= 0.0:
        return 0.0
    if abs(least - mean) > _DEVIATIONS * (math.sqrt(mean) + 1.0):
        return float(least < mean)
    total = term = 1.0
    number = least
    while term > _PRECISION * total:
        number += 1
        term *= mean / number
        total += term
    return min(1.0, total * math.exp(least * math.log(mean) - mean - math.lgamma(least + 1)))


_DEVIATIONS = 9.0
_PRECISION = 1e-12


def sws(situation: Situation, move: Move) -> Cost:
    """Least expected loss; then the fullest GPU, then the one with most instances."""
    placements, wanted = situation.weights
    cost = sum(map(mul, placements, move.loss)) + WASTE_CHARGE * move.waste[wanted]
    if situation.usage == EMPTY:
        cost += OPENING_CHARGE
    return (cost, move.free, -situation.instances)


def best_fit(_situation: Situation, move: Move) -> Cost:
    """The GPU with the fewest free memory slices afterwards; there, the least loss."""
    return (move.free, sum(move.loss))


def spread(_situation: Situation, move: Move) -> Cost:
    """The GPU with the most free memory slices afterwards; there, the least loss."""
    return (-move.free, sum(move.loss))


POLICIES: Mapping[str, Policy] = {
    "sws": sws,
    "best-fit": best_fit,
    "spread": spread,
}
"""By the names that ``MigDeviceConfig.placement.policy`` takes."""


REUSE_CREDIT = WASTE_CHARGE
"""Worth of an instance that need not be made, in the unit of the first entry of a cost.

By the default policy, expected memory slices: a slice is used again unless that is as bad as making
a memory slice unusable. The other policies count whole memory slices there: the credit decides only
among placements that are equal otherwise.
"""


def find_policy(name: str, *, namespace: str, idle: bool) -> Policy:
    """The policy that is called ``name``, for claims of ``namespace``.

    ``idle``: there are idle slices, and the policy takes them into account.
    """
    return heeding_idle(POLICIES[name], namespace) if idle else POLICIES[name]


def heeding_idle(policy: Policy, namespace: str) -> Policy:
    """``policy`` for claims of ``namespace``, with regard to the idle slices of a GPU.

    A placement is credited if an idle slice of the namespace and of the same profile lies there. Of
    placements that are equal otherwise, the one that destroys the fewest memory slices of idle
    slices is preferred. Both can be added up over devices if costs of ``policy`` can.
    """

    def cost(situation: Situation, move: Move) -> Cost:
        first, *rest = policy(situation, move)
        reused, destroyed = 0, 0
        for idle in situation.idle:
            if (idle.placement, idle.profile_id) == (move.placement, move.profile_id) and (
                idle.namespace == namespace
            ):
                reused = 1
            else:
                destroyed += (idle.placement.mask & move.placement.mask).bit_count()
        return (first - REUSE_CREDIT * reused, *rest, destroyed)

    return cost
