"""The fleet as whoever decides reads it: the live one, or one that is only supposed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from dra.allocator.fleet.gpustate import GpuState
from dra.allocator.scoring.geometry_index import GeometryIndex, GeometryIndexes
from dra.allocator.scoring.score import Cost, Policy, Weights
from dra.cel.kinds import Kinds
from dra.cel.offers import Offer
from dra.claims.allocation import Allocation
from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef, Inventory

GpuFingerprints = tuple[Hashable, ...]
Holder = tuple[ClaimRef, Allocation]
"""A claim and what it holds."""

WeightsOf = Callable[[GeometryIndex], Weights]
"""Weights of slices of a geometry now."""


@dataclass(slots=True, eq=False)
class NodeGpus:
    """A node's inventory, and the state of its GPUs in the order of their names.

    ``fingerprint`` is equal for nodes whose GPUs are in equal states: what fits one, fits the
    other.
    """

    inventory: Inventory
    gpus: list[GpuState] = field(default_factory=list)
    gpu_fingerprints: GpuFingerprints = ()
    fingerprint: Hashable = 0

    def gpu(self, name: str) -> GpuState | None:
        """The state of ``gpu-<minor>``."""
        return next((g for g in self.gpus if g.gpu.name == name), None)


class Candidate(NamedTuple):
    """One slice that would serve a want of one device. Lower costs are better."""

    cost: Cost
    state: GpuState
    offer: Offer
    placement: Placement


class CandidatesView(Protocol):
    """Single devices of a fleet, best first."""

    @property
    def whole(self) -> int:
        """Number of GPUs given out whole."""
        ...

    @property
    def shared(self) -> int:
        """Number of GPUs that several claims may share, or slices of which."""
        ...

    @property
    def has_idle(self) -> bool:
        """True if there are idle slices on any GPU."""
        ...

    def in_order(
        self, expressions: tuple[str, ...], policy: Policy, weights: WeightsOf
    ) -> Iterator[Candidate]:
        """Every slice that all ``expressions`` select: smaller profiles, then lower costs, first.

        Ties go to the lower node name, then the lower GPU. The expressions must not tell GPUs of a
        kind apart. Raises SelectorError.
        """
        ...

    def best(
        self,
        expressions: tuple[str, ...],
        policy: Policy,
        weights: WeightsOf,
        states: Iterable[GpuState],
    ) -> Candidate | None:
        """The first of ``in_order`` that is of one of the GPUs ``states``, found by these."""
        ...


class FleetView(Protocol):
    """All GPUs to decide on, and who holds them; nobody changes them meanwhile."""

    @property
    def driver(self) -> str:
        """The name of the driver."""
        ...

    @property
    def kinds(self) -> Kinds:
        """Candidates among the GPUs by selectors."""
        ...

    @property
    def geometry_indexes(self) -> GeometryIndexes:
        """The GPUs by geometry, and the demand for their slices."""
        ...

    @property
    def nodes(self) -> Mapping[str, NodeGpus]:
        """The nodes whose GPUs the controller allocates, by name."""
        ...

    @property
    def schedulers(self) -> Collection[str]:
        """Nodes whose GPUs kube-scheduler allocates."""
        ...

    @property
    def alike(self) -> Mapping[Hashable, tuple[str, ...]]:
        """The nodes by fingerprint, in name order; a group that changes is replaced."""
        ...

    @property
    def candidates(self) -> CandidatesView:
        """Single devices."""
        ...

    def weights(self, index: GeometryIndex) -> Weights:
        """Weights of slices of a geometry now."""
        ...

    def profiles(self) -> frozenset[str]:
        """Names of the profiles that any node's GPUs have."""
        ...

    def without(self, claim_uids: Collection[str], *, holding: Iterable[Holder] = ()) -> FleetView:
        """The fleet as it would be if these claims held nothing, and others what is given.

        Nothing of this fleet changes, and all but the GPUs in question is shared: what is returned
        is good until this fleet changes.
        """
        ...
