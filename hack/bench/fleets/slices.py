"""A node's placements as the plugin publishes them, for the scheduler's side of the comparison."""

from __future__ import annotations

from dra.common.resources import RESOURCE_SLICES, Obj
from dra.gpu.inventory import Inventory
from dra.resourceslices.partitions import offered
from dra.resourceslices.resourceslices import Features, SliceLayout


def partitionable(inventory: Inventory) -> list[Obj]:
    """ResourceSlices in the layout of Kubernetes 1.35 and later: counters, then devices."""
    layout = SliceLayout(offered(inventory, {}, taints=True), Features())
    return [
        {
            "apiVersion": RESOURCE_SLICES.api_version,
            "kind": RESOURCE_SLICES.kind,
            "metadata": {"name": name},
            "spec": layout.spec(index, generation=1),
        }
        for index, name in enumerate(layout.names())
    ]
