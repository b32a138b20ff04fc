"""A fleet of equal GPUs under one placement policy, for the placement benchmark.

The policies and the ``dra.allocator.scoring.geometry_index`` they work on are the controller's
own. ``kube`` models what users have without it: LeastAllocated of kube-scheduler takes the node
with the fewest pods on which the slice fits, and there the first device in name order.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra.allocator.scoring.geometry_index import GeometryIndex, GpuId
from dra.allocator.scoring.moves import MoveTable
from dra.allocator.scoring.score import POLICIES, Demand, scarcity_weights
from dra.gpu.geometry import EMPTY, Geometry, Occupant, Placement, Profile, Usage
from sim.nvml.products import load_product

KUBE = "kube"
NAMES = (KUBE, *POLICIES)


@dataclass(frozen=True, slots=True)
class Held:
    """A placed request."""

    gpu: GpuId
    profile: Profile
    placement: Placement


class Fleet:
    """``gpus`` equal GPUs, ``per_node`` a node, and what has been placed on them."""

    def __init__(self, table: MoveTable, policy: str, *, gpus: int, per_node: int = 4) -> None:
        self.table = table
        self._policy = policy
        self._demand = Demand()
        self._index = GeometryIndex(table)
        self._held: dict[GpuId, list[Held]] = {
            GpuId(f"node-{i // per_node:03}", i % per_node): [] for i in range(gpus)
        }
        self._nodes: dict[str, list[GpuId]] = {}
        self._pods: dict[str, int] = {}
        for gpu in self._held:
            self._index.put(gpu, EMPTY, instances=0)
            self._nodes.setdefault(gpu.node, []).append(gpu)
            self._pods[gpu.node] = 0

    @property
    def active(self) -> int:
        """GPUs with at least one instance."""
        return sum(map(bool, self._held.values()))

    def observe(self, name: str) -> None:
        """Learn that a slice of profile ``name`` was asked for."""
        self._demand.observe(name)

    def place(self, name: str) -> Held | None:
        """Place one slice of profile ``name``; None when it fits nowhere."""
        profile = self.table.geometry.by_name(name)
        if profile is None:
            raise LookupError(f"this GPU has no profile {name!r}")
        chosen = self._kube(profile) if self._policy == KUBE else self._best(profile)
        if chosen is None:
            return None
        gpu, placement = chosen
        held = Held(gpu, profile, placement)
        self._held[gpu].append(held)
        self._pods[gpu.node] += 1
        self._settle(gpu)
        return held

    def free(self, held: Held) -> None:
        """Take a placed slice away."""
        self._held[held.gpu].remove(held)
        self._pods[held.gpu.node] -= 1
        self._settle(held.gpu)

    def _settle(self, gpu: GpuId) -> None:
        held = self._held[gpu]
        usage = self.table.geometry.usage(Occupant(h.placement, h.profile.id) for h in held)
        self._index.put(gpu, usage, instances=len(held))

    def _best(self, profile: Profile) -> tuple[GpuId, Placement] | None:
        policy = POLICIES[self._policy]
        shares = self._demand.shares(self.table.geometry)
        weights = scarcity_weights(self._index.census, shares)
        best = next(self._index.ranked_moves(profile, policy, weights), None)
        return (best.gpu, best.move.placement) if best else None

    def _kube(self, profile: Profile) -> tuple[GpuId, Placement] | None:
        for node in sorted(self._nodes, key=lambda n: (self._pods[n], n)):
            for gpu in self._nodes[node]:
                moves = self.table.moves(self._usage(gpu), profile)
                if moves:
                    return gpu, moves[0].placement
        return None

    def _usage(self, gpu: GpuId) -> Usage:
        return self._index.usage(gpu) or EMPTY


def geometry(product: str) -> Geometry:
    """The plain profiles (no ``+me`` and the like) of one of the simulator's products."""
    loaded = load_product(product)
    return Geometry(
        tuple(
            Profile(
                id=p.id,
                name=p.name,
                compute_slices=p.slice_count,
                memory_mib=p.memory_mib,
                multiprocessors=p.multiprocessors,
                placements=tuple(Placement(s, p.size) for s in p.starts),
            )
            for p in loaded.gi_profiles
            if "+" not in p.name and "-" not in p.name
        )
    )
