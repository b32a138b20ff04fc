"""Supply and scarcity: GPUs of one geometry, by what could still be placed on them."""

from __future__ import annotations

from dra.allocator.scoring.geometry_weights import GpuId
from dra.allocator.scoring.geometry_weights import Market as Index
from dra.allocator.scoring.moves import MoveTable
from dra.allocator.scoring.score import Census, Demand, Weights, scarcity_weights
from dra.gpu.geometry import EMPTY, Geometry, Usage


class Market:
    """The GPUs of one geometry that take new slices."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.table = MoveTable(geometry)
        # The expensive part, now instead of at the first decision.
        self.table.usable(EMPTY, self.table.every)
        self.index = Index(self.table)
        self._weights: Weights | None = None

    def enter(self, gpu: GpuId, usage: Usage, *, instances: int) -> None:
        """Offer a GPU, or say what is on it now."""
        self.index.put(gpu, usage, instances=instances)
        self._weights = None

    def leave(self, gpu: GpuId) -> None:
        """Offer it no longer."""
        self.index.drop(gpu)
        self._weights = None

    def reprice(self) -> None:
        """Forget the weights, because the demand has changed."""
        self._weights = None

    def weights(self, demand: Demand) -> Weights:
        """Weights of slices now."""
        if self._weights is None:
            self._weights = scarcity_weights(self.index.census, demand.shares(self.geometry))
        return self._weights


class Markets:
    """One market per geometry, and the demand that they share."""

    def __init__(self) -> None:
        self.demand = Demand()
        self._by_geometry: dict[Geometry, Market] = {}

    def of(self, geometry: Geometry) -> Market:
        """The market of ``geometry``; equal geometries share one."""
        market = self._by_geometry.get(geometry)
        if market is None:
            market = self._by_geometry[geometry] = Market(geometry)
        return market

    def observe(self, profile: str) -> None:
        """Count an allocated request for ``profile`` as demand."""
        self.demand.observe(profile)
        for market in self._by_geometry.values():
            market.reprice()

    def weights(self, market: Market) -> Weights:
        """``market.weights`` under the present demand."""
        return market.weights(self.demand)

    def weights_at(self, market: Market, census: Census) -> Weights:
        """Weights that slices of a market would have with this ``census``."""
        return scarcity_weights(census, self.demand.shares(market.geometry))
