"""One GPU of the node, as this program knows it between two looks at it."""

from __future__ import annotations

from dra.gpu.geometry import Geometry
from dra.gpu.inventory import Gpu
from dra.kube.timing import Clock, SystemClock
from kubeletplugin.gpus.locks import FifoLock
from kubeletplugin.gpus.neighbours.other_managers import Conflict
from kubeletplugin.gpus.offers import Offers
from kubeletplugin.nvml.discovery import Card


class GpuUnit:
    """One GPU. Whoever changes its instances or its journal entries holds ``lock``.

    ``sick`` says why no slice is made on it although it answers; empty if one may be. ``let_go`` is
    set while this program has nothing of it open, and says why and what ends that. ``wiped`` are
    the keys of journal entries that were prepared on it when it was seen empty right after a time
    in which it was ``away``: it was lost, or its driver or this program did not run.
    """

    def __init__(
        self,
        number: int,
        card: Card,
        *,
        pcie_root: str,
        lock: FifoLock | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.number = number
        self.pcie_root = pcie_root
        self.card = card
        self.lock = lock or FifoLock()
        self.offers = Offers(clock or SystemClock())
        self.withheld: Conflict | None = None
        self.sick = ""
        self.let_go = ""
        self.away = True
        self.wiped: set[tuple[str, str]] = set()
        self.seen: Gpu | None = None

    @property
    def name(self) -> str:
        """``gpu-<number>``."""
        return f"gpu-{self.number}"

    @property
    def uuid(self) -> str:
        """The GPU's UUID."""
        return self.card.uuid

    @property
    def geometry(self) -> Geometry | None:
        """Geometry of the GPU without profiles that could not be delivered as advertised."""
        return self.offers.of(self.card.geometry)
