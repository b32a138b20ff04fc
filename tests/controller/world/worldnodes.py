"""Nodes of a cluster in which everything happens at random: they come, go, and report late."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from functools import partial

from controller.cluster.cluster import Cluster
from dra.common.resources import Obj
from dra.gpu.geometry import Placement, Profile
from dra.gpu.inventory import AllocatorKind, ClaimRef, Gpu, Instance, InstanceState
from tests.controller.helpers.objects import gpu, mignode, node

GPUS = {"node-a": 1, "node-b": 1}
SHARING = 3


def _node(name: str) -> Obj:
    """A node with the label that each kubelet gives its own."""
    return node(name, cpu="1", labels={"kubernetes.io/hostname": name})


class Nodes:
    """All nodes. ``told`` are watch events on their way; ``late`` ones say nothing now and then."""

    def __init__(
        self, cluster: Cluster, draw: random.Random, *, schedulers: Collection[str] = ()
    ) -> None:
        """kube-scheduler allocates the nodes ``schedulers``."""
        self.late = True
        self.schedulers = schedulers
        self.away: set[str] = set()
        self.slices: dict[tuple[str, int, int, str], tuple[Profile, ClaimRef]] = {}
        """Slices that are prepared, by node, GPU, start, and UID of the claim."""
        self.told: list[Callable[[], None]] = []
        self._draw = draw
        self.be_seen_by(cluster)

    def be_seen_by(self, cluster: Cluster) -> None:
        """Those that are there are listed by somebody, to whom all is told from now on."""
        self._cluster = cluster
        for name in sorted(GPUS.keys() - self.away):
            cluster.set_node(_node(name))
            self.report(name)

    def go(self) -> str:
        """A node is lost; returns its name, "" if none is."""
        names = sorted(GPUS.keys() - self.away)
        if len(names) == 1 or self._draw.random() > 0.15:
            return ""
        name = self._draw.choice(names)
        self.away.add(name)
        self.slices = {k: v for k, v in self.slices.items() if k[0] != name}
        return name

    def tell_gone(self, name: str) -> None:
        """A lost node is deleted, and now and then what it has reported, too."""
        cluster = self._cluster
        self.told.append(lambda: cluster.remove_node(name))
        if self._draw.random() < 0.5:
            self.told.append(lambda: cluster.remove_mignode(name))

    def come(self) -> None:
        """A node that was lost is back."""
        if self.away:
            name, cluster = min(self.away), self._cluster
            self.away.remove(name)
            self.told.append(lambda: cluster.set_node(_node(name)))
            self.report(name)

    def report(self, name: str) -> None:
        """A node tells what it has; now and then it does not, before something else happens."""
        if name in self.away or (self.late and self._draw.random() < 0.2):
            return
        kind = AllocatorKind.SCHEDULER if name in self.schedulers else AllocatorKind.CONTROLLER
        gpus = (self._gpu(name, minor) for minor in range(GPUS[name]))
        told = mignode(name, *gpus, allocator=kind)
        self.told.append(partial(self._cluster.set_mignode, told))

    def unprepare(self, names: set[str]) -> None:
        """The slices of these claims go."""
        self.slices = {k: v for k, v in self.slices.items() if v[1].name not in names}

    def _gpu(self, name: str, minor: int) -> Gpu:
        prepared = tuple(
            Instance(
                Placement(start, profile.memory_slices),
                InstanceState.PREPARED,
                profile_id=profile.id,
                profile=profile.name,
                claim=ref,
            )
            for (where, number, start, _), (profile, ref) in self.slices.items()
            if (where, number) == (name, minor)
        )
        return gpu(minor, name, instances=prepared, slice_shares=SHARING)
