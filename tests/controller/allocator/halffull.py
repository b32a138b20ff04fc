"""Clusters of nodes with eight GPUs, two of a PCIe root, that are half full at random."""

from __future__ import annotations

import random
from functools import cache

from controller.cluster.cluster import Cluster
from dra.gpu.geometry import Occupant
from dra.gpu.inventory import Gpu, Instance, InstanceState
from tests.controller.helpers.objects import cluster, gpu, inventory
from tests.dra.gpus import A100

_PLAIN = [p for p in A100.profiles if "+" not in p.name and p.memory_slices < 8]


@cache
def half_full(nodes: int) -> Cluster:
    """The cluster; not to be changed. No GPU has room for a 7g.40gb."""
    draw = random.Random(nodes)
    names = [f"node-{number:03}" for number in range(nodes)]
    known = cluster(*names)
    for name in names:
        known.fleet.set_inventory(inventory(name, *(_gpu(draw, n, name) for n in range(8))))
    return known


def _gpu(draw: random.Random, minor: int, node: str) -> Gpu:
    usage, instances = A100.usage([]), list[Instance]()
    while usage.mask.bit_count() < 4:
        fitting = [(p, q) for p in _PLAIN for q in A100.free_placements(usage, p)]
        profile, placement = draw.choice(fitting)
        usage = A100.add(usage, Occupant(placement, profile.id))
        instances.append(Instance(placement, InstanceState.FOREIGN, profile_id=profile.id))
    root = f"pci0000:{minor // 2:02x}"
    return gpu(minor, node, instances=tuple(instances), pcie_root=root)
